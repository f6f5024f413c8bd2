"""The clipped objective of a token: its ratio to the old policy, the range in which it may move, and the surrogate.

Ratios are logarithms, a vector. Clip ranges are pairs of vectors or numbers. Surrogates are linear in the advantage on
either side of zero, so each is a pair of vectors `(f, g)` and the loss of every one of them is the same sum: - sum of
(A_positive f + A_negative g), with the weights inside the two advantages.
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
from agentrl_core.loss.tokens import LOG_RATIO_LIMIT, Tokens

if TYPE_CHECKING:
    from torch import Tensor

Factors = tuple["Tensor", "Tensor"]


@dataclass(frozen=True)
class ImportanceRatio(Part, ABC):
    """Base of the ratios: a vector, the log of the ratio of each token; and perhaps a factor outside the surrogate."""

    @abstractmethod
    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The log-ratios `[N]`, with gradient, and detached factors `[N]` of the surrogate, or None for 1."""


@dataclass(frozen=True)
class Ratio(ImportanceRatio):
    """How much likelier the policy finds a token, step, sequence or item now than the old policy did.

    It is made of d = log p - log p_old within +-20.

    `token`: log r_t = d_t. Of a step (the tokens of one action), a sequence or an item: the mean of d over its
    trained tokens (a geometric mean of ratios), or their sum (the joint ratio), within +-20 again. The sequence ratio
    with `mean` is GSPO (arXiv:2507.18071), the step ratio that of IPA, the item ratio that of the items of a list
    (Rank-GRPO, arXiv:2510.20150), the sums those of LOOP's turns and trajectories and of multi-agent PPO.

    verl bounds the mean log-ratio of GSPO by 10 from above, and has no gradient beyond: `log_at_most=10`.

    Args:
        level: `token`, `step`, `sequence`, or `item`: the tokens of a sequence that have one number, from 1, in the
            token column `item`, such as `arl.annotate` makes with `model.spans`; a token of none (0) is alone.
        reduce: `mean` or `sum` over the tokens.
        gradient: how a token moves the ratio of its segment. `segment`: as it does; a joint ratio (`sum`) wants this.
            `token`: by its own log-prob alone, r_t = sg(r) p_t / sg(p_t), which is GSPO-token and what verl runs:
            advantages and weights may then differ inside a segment. With `mean` both give the same gradient where the
            advantage and the weight are one for the whole segment.
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
        """A token is no segment."""
        plain = self.reduce == "mean" and self.gradient == "token"
        remedy = "'token' has nothing to reduce: give step, sequence or item"
        self.require(self.level != "token" or plain, "level", remedy)

    def own_reads(self) -> Iterable[str | Column]:
        """Old log-probs, and the ids of the segments."""
        yield "old_logprob"
        if self.level == "item":
            yield from ("sequence", token("item", model="spans"))
        elif self.level != "token":
            yield self.level

    def own_unit(self) -> Unit:
        """The unit of the ratio; an item lies in one sequence."""
        return "trajectory" if self.level in ("sequence", "item") else self.level  # type: ignore[return-value]

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The log-ratio of each token, or of the step, sequence or item that it belongs to."""
        if self.level == "token":
            return tokens.log_ratio.clamp(max=self.log_at_most), None
        segments = tokens.items if self.level == "item" else tokens.segments(self.level)
        reduce = segments.mean if self.reduce == "mean" else segments.sum
        whole = segments.spread(reduce(tokens.log_ratio)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        if self.gradient == "token":
            whole = whole.detach() + tokens.logprob - tokens.logprob.detach()
        return whole.clamp(max=self.log_at_most), None


@dataclass(frozen=True, eq=False)
class ClipBounds:
    """The interval of the ratio: `lower` is felt where the advantage is negative, `upper` where it is positive.

    Attributes:
        lower: number or `[N]`.
        upper: number or `[N]`.
        dual: negative advantages have an upper bound as well, number or `[N]`, or None.
        kept: `[N]`, 0 where a token has no term at all, else 1; None: all have one.
    """

    lower: Tensor | float = 0.0
    upper: Tensor | float = math.inf
    dual: Tensor | float | None = None
    kept: Tensor | None = None

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


OPEN = ClipBounds()


@dataclass(frozen=True)
class ClipRange(Part, ABC):
    """Base of the clip ranges, which bound the ratio of each token."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:
        """The bounds of each token, without gradient."""


@dataclass(frozen=True)
class Clip(ClipRange):
    """How far the ratio r may move before the objective stops rewarding it: the same for every token.

    Args:
        low: felt where the advantage is negative; above 0. 1 - low is the lower bound (at most 1: no lower bound).
        high: felt where the advantage is positive; at least 0. 1 + high is the upper bound. Larger than `low` is the
            clip-higher of DAPO (arXiv:2503.14476).
        dual: for negative advantages the objective is bounded below by dual * A (arXiv:1912.09729); above 1,
            customarily 3. None: no such bound.
        scale: `linear`: [1 - low, 1 + high]; `reciprocal`: [1 / (1 + low), 1 + high] (LOOP's code, arXiv:2502.01600);
            `log`: [exp(-low), exp(high)] (GMPO, arXiv:2507.20673).
        center: `one`; or `proximal`: the bounds move with c = p_proximal / p_old (stream `proximal_logprob`, the
            policy at the start of the step) while r = p / p_old keeps the importance of stale or foreign data.
            `proximal` multiplies: [c (1 - low), c (1 + high)], and c dual; it is decoupled PPO (arXiv:2110.00641,
            AReaL), PPO-EWMA and the code of DOTS+RR. `proximal_shift` adds: [max(c - low, 0), c + high] (ReMix,
            arXiv:2507.06892).
            `interpolated` multiplies by a c that needs no forward pass (A-3PO, arXiv:2512.06547, as AReaL's code):
            log c = k (log p - log p_old), detached, k = (d - 1) / d with d the versions of the policy between who
            sampled the token and the iteration; 0 where d < 1 or the version is not known.
        center_at_most: tokens with a larger c have no term and count in the denominators, as AReaL's with c > 5; above
            0. None: all have one.

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
        """A linear lower bound is at least 0, a shift adds linear widths, and only a centre that moves is bounded."""
        self.require(self.scale != "linear" or self.low <= 1.0, "low", "give a number above 0, at most 1")
        fits = self.center != "proximal_shift" or self.scale == "linear"
        self.require(fits, "center", "proximal_shift adds low and high themselves: use scale='linear'")
        moves = self.center != "one" or self.center_at_most is None
        self.require(moves, "center_at_most", "the centre is 1: choose center='proximal' or 'interpolated', or None")

    def own_reads(self) -> Iterable[str | Column]:
        """The proximal policy's log-probs, where they are the centre; or the versions that it lies between."""
        if self.center == "one":
            return ()
        if self.center == "interpolated":
            return ("old_logprob", token("policy_version"), token("iteration"))
        return ("old_logprob", token("proximal_logprob", model="policy"))

    def interval(self) -> tuple[float, float]:
        """Lower and upper bound around 1."""
        lower = {"linear": 1.0 - self.low, "reciprocal": 1.0 / (1.0 + self.low), "log": math.exp(-self.low)}
        return lower[self.scale], math.exp(self.high) if self.scale == "log" else 1.0 + self.high

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:  # noqa: ARG002 - other bounds read it
        """The same interval around the centre for every token."""
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
        """The centre of each token: 1 where it has no old log-prob."""
        old = tokens.stream("old_logprob")
        if self.center == "interpolated":
            version = tokens.stream("policy_version")
            behind = torch.where(version < 0, 0.0, tokens.stream("iteration") - version).clamp(min=1.0)
            moved = (1.0 - 1.0 / behind) * (tokens.logprob.detach() - old)
        else:
            moved = tokens.stream("proximal_logprob") - old
        return torch.where(tokens.compared, moved, 0.0).clamp(-20.0, 20.0).exp()


@dataclass(frozen=True)
class TokenClip(ClipRange):
    """Takes the clip range of each token from columns: [1 - clip_low, 1 + clip_high] of the columns of these names.

    Args:
        dual: as of `Clip`.

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
        """The interval of each token, from its columns."""
        return ClipBounds(1.0 - tokens.stream("clip_low"), 1.0 + tokens.stream("clip_high"), self.dual)


@dataclass(frozen=True)
class Surrogate(Part, ABC):
    """Base of the surrogates: what a loss maximises times the advantage, such as a clipped ratio."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:
        """Return the factors of a positive and of a negative advantage: two `[N]` vectors to be maximised."""


@dataclass(frozen=True)
class Clipped(Surrogate):
    """Stops rewarding a token once its ratio has left the clip range: PPO, arXiv:1707.06347.

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
        """The ratio, held by the bounds on the side where going further would be rewarded."""
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
    """Plain policy gradient without a ratio's gradient: REINFORCE with a detached weight.

    f = sg(w) log p. The loss's gradient is - A w grad log p.

    Weights: `one` (REINFORCE, ReMax, GPG; with a mask REC without importance sampling); `ratio`: min(r, at_most)
    (DPPO arXiv:2602.04879, MiniRL arXiv:2512.01374, RAPID); `clamped`: min(max(r, lower), upper) (CISPO
    arXiv:2506.13585; with Clip(1, 0), which is [0, 1], truncated importance sampling). TOPR (arXiv:2503.14286) is
    positive="one", negative="clamped" with Clip(1, 0).

    Args:
        positive: weight of tokens with a positive advantage.
        negative: weight of tokens with a negative advantage.
        at_most: of `ratio`, above 0; None: the ratio is limited to exp(20) only.

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
        """`at_most` needs a ratio."""
        used = self.at_most is None or "ratio" in (self.positive, self.negative)
        self.require(used, "at_most", "use it with 'ratio', or give None")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:
        """The log-prob of each token, times a detached factor."""
        ratio = log_ratio.detach().exp()
        weights = {
            "one": torch.ones_like(ratio),
            "ratio": ratio if self.at_most is None else ratio.clamp(max=self.at_most),
            "clamped": bounds.cut_above(ratio).clamp(min=bounds.lower),
        }
        return weights[self.positive] * tokens.logprob, weights[self.negative] * tokens.logprob


@dataclass(frozen=True)
class Expert(Surrogate):
    """Stands in for the surrogate on tokens that another policy wrote, whose probabilities are not known.

        f = g = p / (p + shape)

    Its gradient, shape / (p + shape)^2 grad p, favours what the policy finds unlikely (LUFFY arXiv:2504.14945, ICPO,
    AMPO, SCOPE). It is not clipped. The stream `expert` is 1 on such tokens.

    Args:
        shape: above 0: 0.1 in the public codes, 0.01 in ICPO's paper.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Expert, Tokens
        >>> tokens = Tokens(torch.tensor([0.1]).log(), None, {"weight_kl": torch.ones(1)})
        >>> Expert(shape=0.1)(tokens, torch.zeros(1), ClipBounds())[0].tolist()
        [0.5]
    """

    shape: float = option(0.1, above=0)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:  # noqa: ARG002
        """The shaped probability of each token, in place of a ratio."""
        probability = tokens.logprob.exp()
        factor = probability / (probability + self.shape)
        return factor, factor
