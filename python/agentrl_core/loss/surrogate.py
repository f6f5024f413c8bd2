"""The clipped objective of a token: its ratio to the old policy, the range in which it may move, and the surrogate.

Ratios are vectors of logarithms. Clip ranges are pairs of vectors or numbers. Surrogates are linear in the advantage on
either side of zero, so each is a pair of vectors `(f, g)`. The loss is always - sum of (A_positive f + A_negative g),
with the weights included in the two advantages.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core._util.lazy_torch import torch
from agentrl_core.component import Column, option, token
from agentrl_core.loss.base import Part, Unit
from agentrl_core.loss.inputs import LOG_RATIO_LIMIT, Tokens

if TYPE_CHECKING:
    from torch import Tensor

Factors = tuple["Tensor", "Tensor"]


@dataclass(frozen=True)
class ImportanceRatio(Part, ABC):
    """Base class of importance ratios: a log-ratio for each token, and optionally a factor of the surrogate."""

    @abstractmethod
    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """Return log-ratios `[N]` with gradient, and detached factors `[N]` of the surrogate, or None for 1."""


@dataclass(frozen=True)
class Ratio(ImportanceRatio):
    """Importance ratio of the policy to the old policy, for a token, step, sequence or item.

    It is computed from d = log p - log p_old, limited to +-20.

    `token`: log r_t = d_t. For a step (the tokens of one action), a sequence or an item, log r is the mean of d over
    the trained tokens (a geometric mean of ratios) or the sum (the joint ratio), again limited to +-20. The sequence
    ratio with `mean` is that of GSPO (arXiv:2507.18071), the step ratio that of IPA, the item ratio that of the items
    of a list (Rank-GRPO, arXiv:2510.20150); sums are used by LOOP for turns and trajectories, and by multi-agent PPO.

    verl bounds the mean log-ratio of GSPO by 10 from above, with no gradient beyond: `log_at_most=10`.

    Args:
        level: `token`, `step`, `sequence`, or `item`: the tokens of a sequence with the same number, from 1, in the
            token column `item`, which `arl.annotate` computes with `model.spans`; a token with number 0 is alone.
        reduce: `mean` or `sum` over the tokens.
        gradient: gradient of a segment's ratio. `segment`: the true gradient; use it for a joint ratio (`sum`).
            `token`: each token's ratio only moves with its own log-prob, r_t = sg(r) p_t / sg(p_t), as in GSPO-token
            and verl, so that advantages and weights may differ within a segment. With `mean`, both have the same
            gradient if advantage and weight are equal within each segment.
        log_at_most: upper bound of log r, above 0, at most 20; there is no gradient beyond it.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Policy(ratio=loss.Ratio("sequence"), clip=loss.Clip(3e-4, 4e-4), aggregate="sequence_mean").unit
        'trajectory'
    """

    level: Literal["token", "step", "sequence", "item"] = "token"
    reduce: Literal["mean", "sum"] = "mean"
    gradient: Literal["token", "segment"] = "token"
    log_at_most: float = option(LOG_RATIO_LIMIT, above=0, at_most=LOG_RATIO_LIMIT)

    def check_options(self) -> None:
        """Refuse `reduce` and `gradient` for level `token`, which has nothing to reduce."""
        plain = self.reduce == "mean" and self.gradient == "token"
        remedy = "reduce and gradient need segments: give 'step', 'sequence' or 'item'"
        self.require(self.level != "token" or plain, "level", remedy)

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: old log-probs, and the segment ids of the level."""
        yield "old_logprob"
        if self.level == "item":
            yield from ("sequence", token("item", model="spans"))
        elif self.level != "token":
            yield self.level

    def own_unit(self) -> Unit:
        """`trajectory` for sequences and items, since an item is within one sequence; otherwise the level."""
        return "trajectory" if self.level in ("sequence", "item") else self.level  # type: ignore[return-value]

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """Return the log-ratio of each token, or of the step, sequence or item that contains it, and None."""
        if self.level == "token":
            return tokens.log_ratio.clamp(max=self.log_at_most), None
        segments = tokens.items if self.level == "item" else tokens.segments(self.level)
        reduce = segments.mean if self.reduce == "mean" else segments.sum
        segment_log_ratio = segments.spread(reduce(tokens.log_ratio)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        if self.gradient == "token":
            segment_log_ratio = segment_log_ratio.detach() + tokens.logprob - tokens.logprob.detach()
        return segment_log_ratio.clamp(max=self.log_at_most), None


@dataclass(frozen=True, eq=False)
class ClipBounds:
    """Clip interval of the ratio: `lower` applies to negative advantages, `upper` to positive ones.

    Attributes:
        lower: lower bound, number or `[N]`.
        upper: upper bound, number or `[N]`.
        dual: upper bound for negative advantages, number or `[N]`, or None.
        kept: `[N]`, 0 for tokens that are left out of the surrogate, otherwise 1; None: none is left out.
    """

    lower: Tensor | float = 0.0
    upper: Tensor | float = math.inf
    dual: Tensor | float | None = None
    kept: Tensor | None = None

    def above(self, ratio: Tensor) -> Tensor:
        """Return whether the ratio exceeds the upper bound, so that a positive advantage gains nothing more."""
        return ratio > self.upper

    def below(self, ratio: Tensor) -> Tensor:
        """Return whether the ratio is outside the bounds for negative advantages: below `lower` or above `dual`."""
        outside = ratio < self.lower
        return outside if self.dual is None else outside | (ratio > self.dual)

    def cut_above(self, ratio: Tensor) -> Tensor:
        """Return min(r, upper), the ratio clipped for positive advantages."""
        return ratio.clamp(max=self.upper)

    def cut_below(self, ratio: Tensor) -> Tensor:
        """Return min(max(r, lower), dual), the ratio clipped for negative advantages."""
        clipped = ratio.clamp(min=self.lower)
        return clipped if self.dual is None else clipped.clamp(max=self.dual)


OPEN = ClipBounds()


@dataclass(frozen=True)
class ClipRange(Part, ABC):
    """Base class of clip ranges, which bound the ratio of each token."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:
        """Return the bounds of each token, without gradient."""


@dataclass(frozen=True)
class Clip(ClipRange):
    """Clip range of the ratio around a centre, by default 1: beyond the range, the objective gains nothing.

    Args:
        low: for negative advantages, above 0: the lower bound, by `scale`. With `linear` it is at most 1 (1: no lower
            bound).
        high: for positive advantages, at least 0: 1 + high is the upper bound. A value above `low` is the
            clip-higher of DAPO (arXiv:2503.14476).
        dual: for negative advantages the objective is bounded below by dual * A (arXiv:1912.09729); above 1,
            customarily 3. None: no such bound.
        scale: `linear`: [1 - low, 1 + high]; `reciprocal`: [1 / (1 + low), 1 + high] (LOOP's code, arXiv:2502.01600);
            `log`: [exp(-low), exp(high)] (GMPO, arXiv:2507.20673).
        center: `one`; or `proximal`: the bounds move with c = p_proximal / p_old (stream `proximal_logprob`, the
            policy at the start of the step) while r = p / p_old is the importance ratio of stale or foreign data.
            `proximal` multiplies: [c (1 - low), c (1 + high)], and c dual; it is decoupled PPO (arXiv:2110.00641,
            AReaL), PPO-EWMA and the code of DOTS+RR. `proximal_shift` adds: [max(c - low, 0), c + high] (ReMix,
            arXiv:2507.06892).
            `interpolated` multiplies by a c that needs no forward pass (A-3PO, arXiv:2512.06547, as AReaL's code):
            log c = k (log p - log p_old), detached, k = (d - 1) / d, where d is the number of policy versions between
            the one that sampled the token and the iteration; k is 0 if d < 1 or the version is unknown.
        center_at_most: above 0: tokens with a larger c are left out of the surrogate but count in the denominators, as
            AReaL does for c > 5. None: none is left out.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Clip, Tokens
        >>> Clip(high=0.28)
        Clip(high=0.28)
        >>> versions = {"iteration": torch.tensor([8.0, 8.0]), "policy_version": torch.tensor([6.0, 7.0])}
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": torch.tensor([-3.0, -3.0]), **versions}
        >>> tokens = Tokens(torch.tensor([-1.0, -1.0]), None, streams)  # two versions old: k = 1/2; one: 0
        >>> Clip(center="interpolated")(tokens, tokens.log_ratio).upper.log().tolist()  # 1 + log 1.2, log 1.2
        [1.182, 0.182]
    """

    low: float = option(0.2, above=0)
    high: float = option(0.2, at_least=0)
    dual: float | None = option(None, above=1)
    scale: Literal["linear", "reciprocal", "log"] = "linear"
    center: Literal["one", "proximal", "proximal_shift", "interpolated"] = "one"
    center_at_most: float | None = option(None, above=0)

    def check_options(self) -> None:
        """Require a lower bound of at least 0, a linear scale for `proximal_shift`, and a moving centre to bound."""
        self.require(self.scale != "linear" or self.low <= 1.0, "low", "give a number above 0, at most 1")
        fits = self.center != "proximal_shift" or self.scale == "linear"
        self.require(fits, "center", "'proximal_shift' needs bounds that are differences: use scale='linear'")
        moves = self.center != "one" or self.center_at_most is None
        self.require(moves, "center_at_most", "the centre is 1: choose center='proximal' or 'interpolated', or None")

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns of a centre other than 1: old log-probs, and proximal log-probs or policy versions."""
        if self.center == "one":
            return ()
        if self.center == "interpolated":
            return ("old_logprob", token("policy_version"), token("iteration"))
        return ("old_logprob", token("proximal_logprob", model="policy"))

    def interval(self) -> tuple[float, float]:
        """Return the lower and upper bound around a centre of 1."""
        lower = {"linear": 1.0 - self.low, "reciprocal": 1.0 / (1.0 + self.low), "log": math.exp(-self.low)}
        return lower[self.scale], math.exp(self.high) if self.scale == "log" else 1.0 + self.high

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:  # noqa: ARG002 - other bounds read it
        """Return the interval around the centre of each token, with the same bounds of the ratio to the centre."""
        lower, upper = self.interval()
        if self.center == "one":
            return ClipBounds(lower, upper, self.dual)
        center = self._center(tokens)
        kept = None if self.center_at_most is None else (center <= self.center_at_most).to(center)
        if self.center == "proximal_shift":
            return ClipBounds((center - self.low).clamp(min=0.0), center + self.high, self.dual, kept)
        dual = None if self.dual is None else center * self.dual
        return ClipBounds(center * lower, center * upper, dual, kept)

    def _center(self, tokens: Tokens) -> Tensor:
        """Return the centre of each token, 1 for tokens without an old log-prob."""
        old = tokens.stream("old_logprob")
        if self.center == "interpolated":
            version = tokens.stream("policy_version")
            staleness = torch.where(version < 0, 0.0, tokens.stream("iteration") - version).clamp(min=1.0)
            log_center = (1.0 - 1.0 / staleness) * (tokens.logprob.detach() - old)
        else:
            log_center = tokens.stream("proximal_logprob") - old
        return torch.where(tokens.compared, log_center, 0.0).clamp(-20.0, 20.0).exp()


@dataclass(frozen=True)
class TokenClip(ClipRange):
    """Reads the clip range of each token from the columns `clip_low` and `clip_high`: [1 - clip_low, 1 + clip_high].

    Args:
        dual: upper bound for negative advantages, see `Clip`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.loss.surrogate import TokenClip
        >>> streams = {"weight_kl": torch.ones(1), "clip_low": torch.tensor([0.1]), "clip_high": torch.tensor([0.3])}
        >>> bounds = TokenClip()(Tokens(torch.zeros(1), None, streams), torch.zeros(1))
        >>> bounds.lower.tolist(), bounds.upper.tolist()
        ([0.9], [1.3])
    """

    reads: ClassVar[tuple[str | Column, ...]] = (token("clip_low"), token("clip_high"))

    dual: float | None = option(None, above=1)

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:  # noqa: ARG002 - other bounds read it
        """Return the interval of each token, from its columns."""
        return ClipBounds(1.0 - tokens.stream("clip_low"), 1.0 + tokens.stream("clip_high"), self.dual)


@dataclass(frozen=True)
class Surrogate(Part, ABC):
    """Base class of surrogates: the function of the ratio that a loss multiplies by the advantage and maximises."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:
        """Return the factors of positive and of negative advantages, two `[N]` vectors to be maximised."""


@dataclass(frozen=True)
class Clipped(Surrogate):
    """Surrogate of PPO (arXiv:1707.06347): a token whose ratio has left the clip range gains nothing more.

    f = min(r, upper), g = min(max(r, lower), dual). Outside, the gradient is zero.

    Args:
        soft: `upper`: above the upper bound f = upper * r / sg(r), the value of the bound with the gradient
            upper * grad log p (AEPO, arXiv:2510.14545); `both`: below the lower bound g = lower * r / sg(r) as well.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Clipped, Tokens
        >>> log_ratio = torch.tensor([1.5]).log()
        >>> factors = Clipped()(Tokens(log_ratio, None, {"weight_kl": torch.ones(1)}), log_ratio, ClipBounds(0.8, 1.2))
        >>> [factor.tolist() for factor in factors]
        [[1.2], [1.5]]
    """

    soft: Literal["none", "upper", "both"] = "none"

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:  # noqa: ARG002
        """Return the ratio clipped for positive and for negative advantages."""
        ratio = log_ratio.exp()
        positive, negative = bounds.cut_above(ratio), bounds.cut_below(ratio)
        moving = ratio / ratio.detach()  # 1, with the gradient of log p
        if self.soft != "none":
            positive = torch.where(bounds.above(ratio), positive.detach() * moving, positive)
        if self.soft == "both":
            negative = torch.where(bounds.below(ratio), negative.detach() * moving, negative)
        return positive, negative


@dataclass(frozen=True)
class Reinforce(Surrogate):
    """Plain policy gradient, REINFORCE, with a detached weight in place of a differentiable ratio.

    f = sg(w) log p. The loss's gradient is - A w grad log p.

    Weights: `one` (REINFORCE, ReMax, GPG; with a mask REC without importance sampling); `ratio`: min(r, at_most)
    (DPPO arXiv:2602.04879, MiniRL arXiv:2512.01374, RAPID); `clamped`: min(max(r, lower), upper) (CISPO
    arXiv:2506.13585; with Clip(1, 0), which is [0, 1], truncated importance sampling). TOPR (arXiv:2503.14286) is
    positive="one", negative="clamped" with Clip(1, 0).

    Args:
        positive: weight of tokens with a positive advantage.
        negative: weight of tokens with a negative advantage.
        at_most: upper bound for weight `ratio`, above 0; None: the ratio is only limited to exp(20).

    Example:
        >>> from agentrl_core import loss
        >>> cispo = loss.Policy(clip=loss.Clip(1.0, 0.28), surrogate=loss.Reinforce("clamped", "clamped"))
        >>> cispo.foldable
        True
    """

    positive: Literal["one", "ratio", "clamped"] = "one"
    negative: Literal["one", "ratio", "clamped"] = "one"
    at_most: float | None = option(None, above=0)

    def check_options(self) -> None:
        """Require weight `ratio` for `at_most`."""
        used = self.at_most is None or "ratio" in (self.positive, self.negative)
        self.require(used, "at_most", "use it with positive or negative='ratio', or give None")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:
        """Return the log-prob of each token times its detached weight."""
        ratio = log_ratio.detach().exp()
        weights = {
            "one": torch.ones_like(ratio),
            "ratio": ratio if self.at_most is None else ratio.clamp(max=self.at_most),
            "clamped": bounds.cut_above(ratio).clamp(min=bounds.lower),
        }
        return weights[self.positive] * tokens.logprob, weights[self.negative] * tokens.logprob


@dataclass(frozen=True)
class Expert(Surrogate):
    """Replaces the surrogate on tokens written by another policy, whose probabilities are unknown.

        f = g = p / (p + shape)

    Its gradient, shape / (p + shape)^2 grad p, favours tokens that are unlikely under the policy (LUFFY
    arXiv:2504.14945, ICPO, AMPO, SCOPE). It is not clipped. The stream `expert` is 1 on such tokens.

    Args:
        shape: above 0; 0.1 in the public implementations, 0.01 in ICPO's paper.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Expert, Tokens
        >>> tokens = Tokens(torch.tensor([0.1]).log(), None, {"weight_kl": torch.ones(1)})
        >>> Expert(shape=0.1)(tokens, torch.zeros(1), ClipBounds())[0].tolist()
        [0.5]
    """

    shape: float = option(0.1, above=0)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:  # noqa: ARG002
        """Return the shaped probability of each token, in place of a ratio."""
        probability = tokens.logprob.exp()
        factor = probability / (probability + self.shape)
        return factor, factor
