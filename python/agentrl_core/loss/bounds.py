"""Bounds: between which values the ratio of each token may move, as a pair of vectors or numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.loss.base import OverRows, Part, Scope, Unit
from agentrl_core.loss.tokens import Tokens
from agentrl_core.model.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Bounds:
    """The interval of the ratio: `lower` is felt where the advantage is negative, `upper` where it is positive.

    Attributes:
        lower: number or `[N]`.
        upper: number or `[N]`.
        dual: negative advantages have an upper bound as well, number or `[N]`, or None.
    """

    lower: Tensor | float = 0.0
    upper: Tensor | float = math.inf
    dual: Tensor | float | None = None

    def above(self, ratio: Tensor) -> Tensor:
        """Where a positive advantage has no more to gain."""
        return ratio > self.upper

    def below(self, ratio: Tensor) -> Tensor:
        """Where a negative advantage has no more to gain, or is bounded by `dual`."""
        outside = ratio < self.lower
        return outside if self.dual is None else outside | (ratio > self.dual)

    def cut_above(self, ratio: Tensor) -> Tensor:
        """min(r, upper)."""
        return ratio.clamp(max=self.upper)

    def cut_below(self, ratio: Tensor) -> Tensor:
        """min(max(r, lower), dual)."""
        cut = ratio.clamp(min=self.lower)
        return cut if self.dual is None else cut.clamp(max=self.dual)


OPEN = Bounds()


@dataclass(frozen=True)
class BoundProvider(Part, ABC):
    """Base of the bounds."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> Bounds:
        """The bounds of each token, without gradient."""


@dataclass(frozen=True)
class Clip(BoundProvider):
    """How far the ratio r may move before the objective stops rewarding it: the same for every token.

    Args:
        low: felt where the advantage is negative; above 0. 1 - low is the lower bound (at most 1: no lower bound).
        high: felt where the advantage is positive; at least 0. 1 + high is the upper bound. Larger than `low` is the
            clip-higher of DAPO (arXiv:2503.14476).
        dual: for negative advantages the objective is bounded below by dual * A (arXiv:1912.09729); above 1,
            customarily 3. None: no such bound.
        scale: `linear`: [1 - low, 1 + high]; `reciprocal`: [1 / (1 + low), 1 + high] (LOOP, arXiv:2502.01600);
            `log`: [exp(-low), exp(high)] (GMPO, arXiv:2507.20673).
        center: `one`; or `proximal`: the bounds move with c = p_proximal / p_old (stream `proximal_logprob`, the
            policy at the start of the step) while r = p / p_old keeps the importance of stale or foreign data.
            `proximal` multiplies: [c (1 - low), c (1 + high)], and c dual; it is decoupled PPO (arXiv:2110.00641,
            AReaL), PPO-EWMA and DOTS+RR. `proximal_shift` adds: [max(c - low, 0), c + high] (ReMix, arXiv:2507.06892).

    Example:
        >>> from agentrl_core.loss import Clip
        >>> Clip(high=0.28)
        Clip(low=0.2, high=0.28, dual=None, scale='linear', center='one')
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    scale: Literal["linear", "reciprocal", "log"] = "linear"
    center: Literal["one", "proximal", "proximal_shift"] = "one"

    def check_options(self) -> None:
        """Ranges as documented."""
        if self.scale == "linear":
            self.require(0.0 < self.low <= 1.0, "low", "give a number above 0, at most 1")
        self.require(self.low > 0.0, "low", "give a number above 0")
        self.require(self.high >= 0.0, "high", "give a number of at least 0")
        self.require(self.dual is None or self.dual > 1.0, "dual", "give a number above 1, or None for no dual clip")
        fits = self.center != "proximal_shift" or self.scale == "linear"
        self.require(fits, "center", "proximal_shift adds low and high themselves: use scale='linear'")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """The proximal policy's log-probs, where they are the centre."""
        return () if self.center == "one" else ("old_logprob", "proximal_logprob")

    def interval(self) -> tuple[float, float]:
        """Lower and upper bound around 1."""
        lower = {"linear": 1.0 - self.low, "reciprocal": 1.0 / (1.0 + self.low), "log": math.exp(-self.low)}
        return lower[self.scale], math.exp(self.high) if self.scale == "log" else 1.0 + self.high

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> Bounds:  # noqa: ARG002 - other bounds read it
        """The formula of the class."""
        lower, upper = self.interval()
        if self.center == "one":
            return Bounds(lower, upper, self.dual)
        center = (tokens.stream("proximal_logprob") - tokens.stream("old_logprob")).clamp(-20.0, 20.0).exp()
        if self.center == "proximal":
            dual = None if self.dual is None else center * self.dual
            return Bounds(center * lower, center * upper, dual)
        return Bounds((center - self.low).clamp(min=0.0), center + self.high, self.dual)


@dataclass(frozen=True)
class TokenClip(BoundProvider):
    """Bounds that somebody else made, token by token: [1 - clip_low, 1 + clip_high] from the streams of these names.

    Args:
        dual: as of `Clip`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import TokenClip, Tokens
        >>> streams = {"weight_kl": torch.ones(1), "clip_low": torch.tensor([0.1]), "clip_high": torch.tensor([0.3])}
        >>> bounds = TokenClip()(Tokens(torch.zeros(1), None, streams), torch.zeros(1))
        >>> bounds.lower.tolist(), bounds.upper.tolist()
        ([0.9], [1.3])
    """

    dual: float | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.dual is None or self.dual > 1.0, "dual", "give a number above 1, or None for no dual clip")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """The two widths."""
        return ("clip_low", "clip_high")

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> Bounds:  # noqa: ARG002 - other bounds read it
        """The formula of the class."""
        return Bounds(1.0 - tokens.stream("clip_low"), 1.0 + tokens.stream("clip_high"), self.dual)


@dataclass(frozen=True)
class EntropyClip(OverRows, BoundProvider):
    """Bounds by the entropy of the token under the current policy.

    `band`: tokens above the `quantile` of entropy have the bounds `high`, the others `low`. Archer and ASPO
    (arXiv:2510.06062) take the 0.8-quantile of each response, 0.2 below it and 0.4 above.

    `scaled`: with h in [-1, 1] the normalised entropy, the bounds `low` widen downwards where h <= 0 and upwards
    where h > 0: [1 - low (1 - h)], [1 + high (1 + h)] (HAPO, arXiv:2509.16591). See `normalised_entropy`.

    Args:
        low: bounds of confident tokens.
        high: bounds of uncertain tokens; only for `band`.
        quantile: between 0 and 1.
        kind: `band` or `scaled`.
        scope: the quantile is of each `sequence` or of `all` rows given.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import EntropyClip, Tokens
        >>> streams = {"weight_kl": torch.ones(5), "sequence": torch.zeros(5, dtype=torch.int64)}
        >>> tokens = Tokens(torch.zeros(5), torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), streams)
        >>> EntropyClip()(tokens, torch.zeros(5)).upper.tolist()  # only the last is above the quantile, 3.2
        [1.2, 1.2, 1.2, 1.2, 1.4]
    """

    low: Clip = Clip(0.2, 0.2)
    high: Clip = Clip(0.4, 0.4)
    quantile: float = 0.8
    kind: Literal["band", "scaled"] = "band"
    scope: Scope = "sequence"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 < self.quantile < 1.0, "quantile", "give a number between 0 and 1")
        for name in ("low", "high"):
            self.require(getattr(self, name).center == "one", name, "its centre is one here")

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> Bounds:  # noqa: ARG002 - other bounds read it
        """The formula of the class."""
        lower, upper = self.low.interval()
        if self.kind == "scaled":
            height = normalised_entropy(tokens, self.quantile, self.scope)
            wider_low, wider_high = 1.0 + (-height).clamp(min=0.0), 1.0 + height.clamp(min=0.0)
            return Bounds(
                (1.0 - self.low.low * wider_low).clamp(min=0.0), 1.0 + self.low.high * wider_high, self.low.dual
            )
        segments = tokens.segments(self.scope)
        entropy = tokens.entropy.detach()
        uncertain = entropy > segments.spread(segments.quantile(entropy, self.quantile))
        wide_lower, wide_upper = self.high.interval()
        low, high = entropy.new_tensor([lower, upper]), entropy.new_tensor([wide_lower, wide_upper])
        return Bounds(torch.where(uncertain, high[0], low[0]), torch.where(uncertain, high[1], low[1]), self.low.dual)


def normalised_entropy(tokens: Tokens, quantile: float, scope: Scope) -> Tensor:
    """HAPO's entropy score of each token, in [-1, 1] (arXiv:2509.16591), without gradient.

    e = log max(H, 1e-8); h = e - quantile(e), divided by its root mean square; then positive values are divided by
    the largest and negative ones by the size of the smallest. The public code divides negative values by the smallest
    itself, which makes them positive; here they stay negative.

    Args:
        tokens: the rows.
        quantile: the nearest value to this quantile is the zero of the score.
        scope: the statistics are of each `sequence` or of `all` rows.
    """
    segments = tokens.segments(scope)
    log_entropy = tokens.entropy.detach().clamp(min=1e-8).log()
    height = log_entropy - segments.spread(segments.quantile(log_entropy, quantile, nearest=True))
    largest, smallest = (segments.spread(segments.maximum(sign * height)) for sign in (1.0, -1.0))
    # Dividing by the root mean square first would change neither sign nor quotient.
    above, below = (height / size.clamp(min=1e-8) for size in (largest, smallest))
    return torch.where(tokens.trained, torch.where(height > 0, above, below), 0.0)


@dataclass(frozen=True)
class ProbabilityClip(BoundProvider):
    """DCPO: more room for tokens that were unlikely (arXiv:2509.02333).

    With q = p_old,

        lower = 1/2 + 1/2 sqrt(max(0, 1 - 4 low / q)),   upper = min(1/2 + 1/2 sqrt(1 + 4 high / q), limit)

    the solutions of |(r - 1) r q| <= epsilon.

    Args:
        low: above 0.
        high: above 0.
        limit: the upper bound is at most this; above 1.
        dual: as of `Clip`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ProbabilityClip, Tokens
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": torch.tensor([0.8, 0.1]).log()}
        >>> bounds = ProbabilityClip()(Tokens(torch.zeros(2), None, streams), torch.zeros(2))
        >>> bounds.lower.tolist(), bounds.upper.tolist()
        ([0.724, 0.5], [1.207, 2.0])
    """

    low: float = 0.16
    high: float = 0.2
    limit: float = 10.0
    dual: float | None = 10.0

    def check_options(self) -> None:
        """Ranges as documented."""
        for name in ("low", "high"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")
        self.require(self.limit > 1.0, "limit", "give a number above 1")
        self.require(self.dual is None or self.dual > 1.0, "dual", "give a number above 1, or None for no dual clip")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Old log-probs."""
        return ("old_logprob",)

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> Bounds:  # noqa: ARG002 - other bounds read it
        """The formula of the class."""
        unlikely = (-tokens.stream("old_logprob")).clamp(max=60.0).exp()  # 1 / q
        lower = 0.5 + 0.5 * (1.0 - 4.0 * self.low * unlikely).clamp(min=0.0).sqrt()
        upper = 0.5 + 0.5 * (1.0 + 4.0 * self.high * unlikely).sqrt()
        return Bounds(lower, upper.clamp(max=self.limit), self.dual)


@dataclass(frozen=True)
class BalancedClip(BoundProvider):
    """BAPO: bounds that move until positive advantages carry their share (arXiv:2510.18927).

    With P = sum of A min(r, upper) over positive advantages and N = sum of -A max(r, lower) over negative ones (each
    with its weight), the bounds start at `low`, `high`; first `lower` rises by `low_step` up to `low_limit`, then
    `upper` by `high_step` up to `high_limit`; the first pair whose share reaches `target` is taken, else the last.
    The sums are over all rows of the update: the packs of one do not add up (`Update.together`).

    Args:
        low: first lower bound, above 0.
        low_limit: last lower bound, at most 1.
        low_step: above 0.
        high: first upper bound.
        high_limit: last upper bound.
        high_step: above 0.
        target: above 0.
        measure: `odds`: P / N, as the public code; `share`: P / (P + N), as the paper.
        dual: as of `Clip`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import BalancedClip, Tokens
        >>> gain, pull = torch.tensor([1.0, 0.0]), torch.tensor([0.0, -3.0])
        >>> streams = {"weight_kl": torch.ones(2), "advantage_positive": gain, "advantage_negative": pull}
        >>> bounds = BalancedClip()(Tokens(torch.zeros(2), None, streams), torch.zeros(2))
        >>> bounds.lower.item(), bounds.upper.item()  # P / N is 1/3 whatever the bounds, so they open fully
        (0.8, 2.0)
    """

    low: float = 0.6
    low_limit: float = 0.8
    low_step: float = 0.05
    high: float = 1.2
    high_limit: float = 2.0
    high_step: float = 0.05
    target: float = 1.0
    measure: Literal["odds", "share"] = "odds"
    dual: float | None = 3.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 < self.low <= self.low_limit <= 1.0, "low", "give 0 < low <= low_limit <= 1")
        self.require(1.0 <= self.high <= self.high_limit, "high", "give 1 <= high <= high_limit")
        for name in ("low_step", "high_step", "target"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")
        self.require(self.dual is None or self.dual > 1.0, "dual", "give a number above 1, or None for no dual clip")

    @property
    def own_unit(self) -> Unit:
        """The update: its sums are over all rows."""
        return "update"

    @property
    def own_separable(self) -> bool:
        """No: the bounds depend on sums. They are sums of what folds, so it is foldable."""
        return False

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> Bounds:
        """The formula of the class."""
        pairs = [(self.low, self.high)]
        while pairs[-1][0] < self.low_limit:
            pairs.append((min(pairs[-1][0] + self.low_step, self.low_limit), self.high))
        while pairs[-1][1] < self.high_limit:
            pairs.append((self.low_limit, min(pairs[-1][1] + self.high_step, self.high_limit)))
        ratio = log_ratio.detach().exp()
        reached = []
        for lower, upper in pairs:
            gain = (tokens.advantage_positive * ratio.clamp(max=upper)).sum()
            pull = -(tokens.advantage_negative * ratio.clamp(min=lower)).sum()
            share = gain / (gain + pull) if self.measure == "share" else gain / (pull + 1e-8 * (gain + pull))
            reached.append((share >= self.target) | (pull <= 0))
        reached[-1] = torch.ones_like(reached[-1])
        first = torch.stack(reached).int().argmax()
        lower, upper = ratio.new_tensor(pairs).index_select(0, first[None])[0]
        return Bounds(lower, upper, self.dual)


@dataclass(frozen=True)
class SecondMomentClip(BoundProvider):
    """M2PO: clip only as far as stale data asks for (arXiv:2510.01161).

    Over the tokens that an update would push further away, S = {A > 0, r > 1} or {A < 0, r < 1}: if the mean of
    d^2 is at most `budget`, nothing is clipped. Else k^2 is the largest of the d^2 in S with
    sum over S of min(d^2, k^2) <= budget |S| (0 if there is none), and the bounds are [exp(-k), exp(k)]. Over the rows
    given.

    Args:
        budget: bound of the second moment of log r, above 0.
        least: bounds that are never narrowed further; None: they may close entirely.
        dual: as of `Clip`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import SecondMomentClip, Tokens
        >>> one, none = torch.ones(2), torch.zeros(2)
        >>> streams = {"weight_kl": one, "advantage_positive": one, "advantage_negative": none}
        >>> bounds = SecondMomentClip()(Tokens(none, None, streams), torch.tensor([0.1, 0.6]))
        >>> bounds.lower.item(), bounds.upper.item()  # the mean square 0.185 exceeds 0.04, so k = 0.1
        (0.905, 1.105)
    """

    budget: float = 0.04
    least: Clip | None = None
    dual: float | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.budget > 0.0, "budget", "give a number above 0")
        fits = self.least is None or self.least.center == "one"
        self.require(fits, "least", "its centre is one here")
        self.require(self.dual is None or self.dual > 1.0, "dual", "give a number above 1, or None for no dual clip")

    @property
    def own_unit(self) -> Unit:
        """The update: its mean is over all rows."""
        return "update"

    @property
    def own_foldable(self) -> bool:
        """No: its mean counts rows."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> Bounds:
        """The formula of the class."""
        distance = log_ratio.detach()
        harmful = ((tokens.advantage_positive > 0) & (distance > 0)) | (
            (tokens.advantage_negative < 0) & (distance < 0)
        )
        count = harmful.sum()
        allowed = self.budget * count
        squares = torch.where(harmful, distance.square(), 0.0).sort().values  # those of S come last, in order
        larger = torch.arange(len(squares) - 1, -1, -1, device=squares.device)
        fits = squares.cumsum(0) + larger * squares <= allowed
        limit = torch.where(fits, squares, 0.0).max() if len(squares) else squares.sum()
        width = torch.where(squares.sum() <= allowed, torch.inf, limit.sqrt())
        lower, upper = (-width).exp(), width.exp()
        if self.least is not None:
            least_lower, least_upper = self.least.interval()
            lower, upper = lower.clamp(max=least_lower), upper.clamp(min=least_upper)
        return Bounds(lower, upper, self.dual)
