"""Token masks of a policy loss: factors without gradient, one for positive and one for negative advantages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core._util.lazy_torch import torch
from agentrl_core.component import Column, option, token
from agentrl_core.loss.base import ADVANTAGES, OverRows, Part, Scope, Unit
from agentrl_core.loss.inputs import Tokens
from agentrl_core.loss.surrogate import ClipBounds

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 2**63 - 1  # of int64

Score = Literal["entropy", "covariance", "advantage_entropy", "surprise", "dependency"]


@dataclass(frozen=True)
class Mask(Part, ABC):
    """Base class of masks, which select the tokens that contribute to a loss, given the current policy."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:
        """Return factors of the surrogate for positive and for negative advantages, `[N]` each, without gradient."""


@dataclass(frozen=True)
class InBounds(Mask):
    """Masks tokens whose ratio is outside the clip range: with `Reinforce`, PPO's clip without the ratio.

    `one_sided`: a positive advantage needs r <= upper, a negative one r >= lower (REC-OneSide of "Group-relative
    REINFORCE is secretly an off-policy algorithm", MiniRL). `two_sided`: both need lower <= r <= upper. `ring`: as
    `two_sided`, but positive advantages with r <= ring_low and negative ones with r >= ring_high also count.

    Args:
        kind: `one_sided`, `two_sided` or `ring`, see above.
        ring_low: bound for `ring`, below 1.
        ring_high: bound for `ring`, above 1.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, InBounds, Tokens
        >>> log_ratio = torch.tensor([1.0, 1.5]).log()
        >>> tokens = Tokens(log_ratio, None, {"weight_kl": torch.ones(2)})
        >>> [factor.tolist() for factor in InBounds()(tokens, log_ratio, ClipBounds(0.8, 1.2))]
        [[1.0, 0.0], [1.0, 1.0]]
    """

    kind: Literal["one_sided", "two_sided", "ring"] = "one_sided"
    ring_low: float = option(0.4, at_least=0, below=1)
    ring_high: float = option(3.0, above=1)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return 1 if `kind` keeps a token with this ratio, otherwise 0, for positive and for negative advantages."""
        ratio = log_ratio.detach().exp()
        low, high = ratio >= bounds.lower, ratio <= bounds.upper
        if self.kind == "one_sided":
            return high.to(ratio), low.to(ratio)
        inside = low & high
        if self.kind == "two_sided":
            return inside.to(ratio), inside.to(ratio)
        return (inside | (ratio <= self.ring_low)).to(ratio), (inside | (ratio >= self.ring_high)).to(ratio)


@dataclass(frozen=True)
class TopTokens(OverRows, Mask):
    """Trains only the tokens with the highest scores, such as those at which the policy was uncertain.

    Scores: `entropy` (80/20, arXiv:2506.01939; OmniQuality-R), `covariance` of advantage and log-prob (KL-Cov,
    arXiv:2505.22617), `advantage_entropy` |A| H (D3S), `surprise` - log p - H (Light-IF's imitation), or the stream
    `dependency` (VPPO: how much the token depends on an input).

    Args:
        score: see above.
        fraction: share of tokens to keep, between 0 and 1.
        scope: take the fraction of `all` given rows, or of each `sequence`.
        kind: `quantile`: the tokens at or above the (1 - fraction)-quantile, as in TRL; `ceil`: the ceil(fraction n)
            highest, with ties; `floor`: the floor(fraction n) highest but at least one, as in verl's kl_cov.
        denominator: `all`: dropped tokens still count in the denominator (TRL); `kept`: the factors of kept tokens are
            scaled by n / kept (80/20; OmniQuality-R).

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens, TopTokens
        >>> tokens = Tokens(torch.zeros(5), torch.tensor([0.3, 2.0, 0.1, 0.2, 0.4]), {"weight_kl": torch.ones(5)})
        >>> TopTokens(fraction=0.2).chosen(tokens).tolist()
        [False, True, False, False, False]
    """

    score: Score = "entropy"
    fraction: float = option(0.2, above=0, below=1)
    scope: Scope = "all"
    kind: Literal["quantile", "ceil", "floor"] = "quantile"
    denominator: Literal["all", "kept"] = "all"

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: those of the score, and sequence ids if the scope needs them."""
        yield from super().own_reads()
        if self.score == "dependency":
            yield token("dependency")
        elif self.score in ("covariance", "advantage_entropy"):
            yield from ADVANTAGES

    def own_unit(self) -> Unit:
        """The unit of the scope, but `update` for a covariance, whose means are over all rows."""
        return "update" if self.score == "covariance" else super().own_unit()

    def chosen(self, tokens: Tokens) -> Tensor:
        """Return a mask of the kept rows, `bool[N]`."""
        segments = tokens.segments(self.scope)
        scores = score_of(tokens, self.score)
        if self.kind == "floor":
            number = (segments.count * self.fraction + 1e-9).floor().clamp(min=1)
            return tokens.trained & (segments.rank(scores, descending=True) < segments.spread(number))
        if self.kind == "quantile":
            return tokens.trained & (scores >= segments.spread(segments.quantile(scores, 1.0 - self.fraction)))
        number = (segments.count * self.fraction - 1e-9).ceil()
        last = segments.rank(scores, descending=True) == segments.spread(number) - 1
        threshold = segments.spread(segments.sum(torch.where(last, scores, 0.0)))
        return tokens.trained & (scores >= threshold)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return 1 for the tokens with the highest scores, otherwise 0; scaled up if only kept tokens count."""
        kept = self.chosen(tokens).to(tokens.logprob.dtype)
        if self.denominator == "kept":
            segments = tokens.segments(self.scope)
            kept = kept * segments.spread(segments.count / segments.sum(kept.double()).clamp(min=1)).to(kept)
        return kept, kept


@dataclass(frozen=True)
class CovarianceMask(Mask):
    """Prevents entropy collapse: leaves out a few random tokens whose updates would strongly reduce the entropy.

    Those are tokens with a large covariance of advantage and log-prob. Source: Clip-Cov, arXiv:2505.22617.

    cov = (A - mean A) (log p - mean log p). Among the tokens with low < cov < high that the clip has not cut already,
    max(floor(fraction n), 1) are drawn at random and have no loss; they still count in the denominator. Means and n are
    over the rows given. The draw is keyed by `seed` and the number of the trained row.

    Args:
        fraction: share of tokens to leave out, between 0 and 1: 2e-4 in the paper, 0.02 in SPEAR.
        low: lower end of the covariance band.
        high: upper end of the covariance band, above `low`.
        seed: seed of the random draw, from 0 to 2^31 - 1.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, CovarianceMask, Tokens
        >>> gain, pull = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, -3.0])
        >>> streams = {"weight_kl": torch.ones(3), "advantage_positive": gain, "advantage_negative": pull}
        >>> tokens = Tokens(torch.tensor([-1.0, -2.0, -3.0]), None, streams)  # covariances 3, 0, 3
        >>> kept = CovarianceMask()(tokens, torch.zeros(3), ClipBounds())[0]
        >>> kept[1].item(), kept.sum().item()
        (1.0, 2.0)
    """

    reads: ClassVar[tuple[str | Column, ...]] = ADVANTAGES
    over: ClassVar[Unit] = "update"

    fraction: float = option(2e-4, above=0, below=1)
    low: float = 1.0
    high: float = 5.0
    seed: int = option(0, at_least=0, below=2**31)

    def check_options(self) -> None:
        """Require that the covariance band is not empty."""
        self.require(self.high > self.low, "high", f"give a number above low={self.low}")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:
        """Return 0 for the tokens drawn from those whose covariance is in the band, otherwise 1."""
        ratio = log_ratio.detach().exp()
        cut = ((ratio > bounds.upper) & (tokens.advantage_positive > 0)) | (
            (ratio < bounds.lower) & (tokens.advantage_negative < 0)
        )
        scores = score_of(tokens, "covariance")
        candidate = tokens.trained & ~cut & (scores > self.low) & (scores < self.high)
        lots = _hash(tokens.trained.cumsum(0), self.seed)  # untrained rows do not affect the draw
        place = torch.where(candidate, lots, _LARGEST).argsort(stable=True).argsort(stable=True)
        number = (tokens.trained.sum() * self.fraction + 1e-9).floor().clamp(min=1)
        kept = (~(candidate & (place < number))).to(ratio)
        return kept, kept


def _hash(number: Tensor, seed: int) -> Tensor:
    """Return the lower 63 bits of SplitMix64 of (seed, number), which are the same on every device."""
    mixed = (number + 1 + (seed << 32)) * -0x61C8864680B583EB  # wraps around
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ ((mixed >> shift) & (_LARGEST >> (shift - 1)))) * factor
    return (mixed ^ ((mixed >> 31) & (_LARGEST >> 30))) & _LARGEST


def score_of(tokens: Tokens, score: Score) -> Tensor:
    """Return the score of each row, without gradient."""
    if score == "dependency":
        return tokens.stream("dependency")
    if score == "entropy":
        return tokens.entropy.detach()
    if score == "advantage_entropy":
        return (tokens.advantage * tokens.entropy).abs().detach()
    logprob = tokens.logprob.detach()
    if score == "surprise":
        return -logprob - tokens.entropy.detach()
    rows = tokens.segments("all")
    centred = (values - rows.spread(rows.mean(values)) for values in (tokens.advantage, logprob))
    product = next(centred) * next(centred)
    return torch.where(tokens.trained, product, 0.0)
