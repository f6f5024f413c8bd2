"""Gates: which tokens speak, as a pair of detached factors for positive and for negative advantages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.loss.base import OverRows, Part, Scope, Unit
from agentrl_core.loss.bounds import Bounds, normalised_entropy
from agentrl_core.loss.tokens import Tokens
from agentrl_core.model.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 2**63 - 1  # of int64

Score = Literal["entropy", "covariance", "advantage_entropy", "surprise", "dependency"]


@dataclass(frozen=True)
class Gate(Part, ABC):
    """Base of the gates."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """Factors of the surrogate where the advantage is positive, and where it is negative; `[N]`, no gradient."""


@dataclass(frozen=True)
class InBounds(Gate):
    """Only tokens whose ratio is within the bounds: with `Reinforce`, the clip of PPO without its ratio.

    `one_sided`: a positive advantage needs r <= upper, a negative one r >= lower (REC-OneSide of "Group-relative
    REINFORCE is secretly an off-policy algorithm", MiniRL). `two_sided`: both need lower <= r <= upper. `ring`: as
    two-sided, and also positive ones with r <= ring_low and negative ones with r >= ring_high.

    Args:
        sides: one of the three.
        ring_low: below 1.
        ring_high: above 1.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, InBounds, Tokens
        >>> log_ratio = torch.tensor([1.0, 1.5]).log()
        >>> tokens = Tokens(log_ratio, None, {"weight_kl": torch.ones(2)})
        >>> [factor.tolist() for factor in InBounds()(tokens, log_ratio, Bounds(0.8, 1.2))]
        [[1.0, 0.0], [1.0, 1.0]]
    """

    sides: Literal["one_sided", "two_sided", "ring"] = "one_sided"
    ring_low: float = 0.4
    ring_high: float = 3.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 <= self.ring_low < 1.0, "ring_low", "give a number from 0 and below 1")
        self.require(self.ring_high > 1.0, "ring_high", "give a number above 1")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The formula of the class."""
        ratio = log_ratio.detach().exp()
        low, high = ratio >= bounds.lower, ratio <= bounds.upper
        if self.sides == "one_sided":
            return high.to(ratio), low.to(ratio)
        inside = low & high
        if self.sides == "two_sided":
            return inside.to(ratio), inside.to(ratio)
        return (inside | (ratio <= self.ring_low)).to(ratio), (inside | (ratio >= self.ring_high)).to(ratio)


@dataclass(frozen=True)
class Divergence(Gate):
    """DPPO (arXiv:2602.04879): tokens whose probability has not moved too far, in place of a ratio's bounds.

    `tv`: a positive advantage needs p - p_old <= high, a negative one p - p_old >= -low. `kl`: the divergence of the
    two-valued distributions, p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)), is at most `high` or
    `low`, or p has moved against the advantage. Use it with `Reinforce("ratio", "ratio", cap=20)` and `clip=None`.

    Args:
        kind: `tv` or `kl`.
        low: above 0.
        high: above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, Divergence, Tokens
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": torch.tensor([0.5, 0.5]).log()}
        >>> tokens = Tokens(torch.tensor([0.6, 0.9]).log(), None, streams)
        >>> [factor.tolist() for factor in Divergence()(tokens, tokens.log_ratio, Bounds())]
        [[1.0, 0.0], [1.0, 1.0]]
    """

    kind: Literal["tv", "kl"] = "tv"
    low: float = 0.2
    high: float = 0.2

    def check_options(self) -> None:
        """Ranges as documented."""
        for name in ("low", "high"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Old log-probs."""
        return ("old_logprob",)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The formula of the class."""
        logprob, old_logprob = tokens.logprob.detach(), tokens.stream("old_logprob")
        probability, old = logprob.exp(), old_logprob.exp()
        moved = probability - old
        if self.kind == "tv":
            positive, negative = moved <= self.high, moved >= -self.low
        else:
            rest = ((1.0 - old + 1e-8) / (1.0 - probability + 1e-8)).log()
            divergence = old * (old_logprob - logprob) + (1.0 - old) * rest
            positive = (divergence <= self.high) | (moved <= 0)
            negative = (divergence <= self.low) | (moved >= 0)
        return positive.to(logprob), negative.to(logprob)


@dataclass(frozen=True)
class TopShare(OverRows, Gate):
    """Only the share of tokens with the highest score.

    Scores: `entropy` (80/20, arXiv:2506.01939; OmniQuality-R), `covariance` of advantage and log-prob (KL-Cov,
    arXiv:2505.22617), `advantage_entropy` |A| H (D3S), `surprise` - log p - H (Light-IF's imitation), or the stream
    `dependency` (VPPO: how much the token depends on an input).

    Args:
        score: see above.
        share: between 0 and 1.
        scope: the share is of `all` rows given or of each `sequence`.
        count: `quantile`: the tokens at or above the (1 - share)-quantile, as TRL; `ceil`: the ceil(share n) highest,
            ties kept; `floor`: the floor(share n) highest and at least one, as verl's kl_cov.
        denominator: `all`: dropped tokens still count in the denominator (80/20); `kept`: what is kept is scaled up by
            n / kept (OmniQuality-R).

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens, TopShare
        >>> tokens = Tokens(torch.zeros(5), torch.tensor([0.3, 2.0, 0.1, 0.2, 0.4]), {"weight_kl": torch.ones(5)})
        >>> TopShare(share=0.2).chosen(tokens).tolist()
        [False, True, False, False, False]
    """

    score: Score = "entropy"
    share: float = 0.2
    scope: Scope = "all"
    count: Literal["quantile", "ceil", "floor"] = "quantile"
    denominator: Literal["all", "kept"] = "all"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 < self.share < 1.0, "share", "give a number between 0 and 1")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Sequence ids, and a score that is a stream."""
        return (*super().own_streams, *(("dependency",) if self.score == "dependency" else ()))

    @property
    def own_unit(self) -> Unit:
        """That of the scope; the update where the score is a covariance, whose means are over all rows."""
        return "update" if self.score == "covariance" else super().own_unit

    def chosen(self, tokens: Tokens) -> Tensor:
        """`bool[N]`, the rows that are kept."""
        segments = tokens.segments(self.scope)
        scores = score_of(tokens, self.score)
        if self.count == "floor":
            number = (segments.count * self.share + 1e-9).floor().clamp(min=1)
            return tokens.trained & (segments.rank(scores, descending=True) < segments.spread(number))
        if self.count == "quantile":
            return tokens.trained & (scores >= segments.spread(segments.quantile(scores, 1.0 - self.share)))
        number = (segments.count * self.share - 1e-9).ceil()
        last = segments.rank(scores, descending=True) == segments.spread(number) - 1
        threshold = segments.spread(segments.sum(torch.where(last, scores, 0.0)))
        return tokens.trained & (scores >= threshold)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The formula of the class."""
        kept = self.chosen(tokens).to(tokens.logprob.dtype)
        if self.denominator == "kept":
            segments = tokens.segments(self.scope)
            kept = kept * segments.spread(segments.count / segments.sum(kept.double()).clamp(min=1)).to(kept)
        return kept, kept


@dataclass(frozen=True)
class CovarianceClip(Gate):
    """Clip-Cov (arXiv:2505.22617): a few tokens with a large covariance of advantage and log-prob are left out.

    cov = (A - mean A) (log p - mean log p). Among the tokens with low < cov < high that the clip has not cut already,
    max(floor(share n), 1) are drawn at random and have no loss; they still count in the denominator. Means and n are
    over the rows given. The draw is keyed by `seed` and the number of the trained row.

    Args:
        share: between 0 and 1: 2e-4 in the paper, 0.02 in SPEAR.
        low: of the band.
        high: of the band, above `low`.
        seed: of the draw, from 0 to 2^31 - 1.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, CovarianceClip, Tokens
        >>> gain, pull = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, -3.0])
        >>> streams = {"weight_kl": torch.ones(3), "advantage_positive": gain, "advantage_negative": pull}
        >>> tokens = Tokens(torch.tensor([-1.0, -2.0, -3.0]), None, streams)  # covariances 3, 0, 3
        >>> kept = CovarianceClip()(tokens, torch.zeros(3), Bounds())[0]
        >>> kept[1].item(), kept.sum().item()
        (1.0, 2.0)
    """

    share: float = 2e-4
    low: float = 1.0
    high: float = 5.0
    seed: int = 0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 < self.share < 1.0, "share", "give a number between 0 and 1")
        self.require(self.high > self.low, "high", f"give a number above low={self.low}")
        self.require(0 <= self.seed < 2**31, "seed", "give a whole number from 0 to 2^31 - 1")

    @property
    def own_unit(self) -> Unit:
        """The update."""
        return "update"

    @property
    def own_foldable(self) -> bool:
        """No: it counts rows."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """The formula of the class."""
        ratio = log_ratio.detach().exp()
        cut = ((ratio > bounds.upper) & (tokens.advantage_positive > 0)) | (
            (ratio < bounds.lower) & (tokens.advantage_negative < 0)
        )
        scores = score_of(tokens, "covariance")
        candidate = tokens.trained & ~cut & (scores > self.low) & (scores < self.high)
        lots = _hash(tokens.trained.cumsum(0), self.seed)  # rows that are not trained change no draw
        place = torch.where(candidate, lots, _LARGEST).argsort(stable=True).argsort(stable=True)
        number = (tokens.trained.sum() * self.share + 1e-9).floor().clamp(min=1)
        kept = (~(candidate & (place < number))).to(ratio)
        return kept, kept


@dataclass(frozen=True)
class EntropyChange(Gate):
    """STEER: tokens whose update would change the entropy most count less ("Rethinking entropy interventions in RLVR").

        change = |A p / p_old (1 - p) (log p + H)|   (first order, with p between 1e-8 and 1 - 1e-8)

    `linear`: from `high` at the smallest change of the rows given to `low` at the largest, (low + high) / 2 if all are
    equal. `exponential`: max(low, exp(log(low) change / max(largest, 0.02))).

    Args:
        kind: `linear` or `exponential`.
        low: weight of the largest change, between 0 and 1.
        high: weight of the smallest change; only for `linear`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, EntropyChange, Tokens
        >>> logprob = torch.tensor([0.5, 0.5]).log()
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": logprob}
        >>> streams |= {"advantage_positive": torch.ones(2), "advantage_negative": torch.zeros(2)}
        >>> tokens = Tokens(logprob, torch.tensor([0.693, 0.0]), streams)  # log p + H is 0 at the first
        >>> EntropyChange()(tokens, torch.zeros(2), Bounds())[0].tolist()
        [1.2, 0.8]
    """

    kind: Literal["linear", "exponential"] = "linear"
    low: float = 0.8
    high: float = 1.2

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 < self.low < 1.0, "low", "give a number between 0 and 1")
        self.require(self.high >= self.low, "high", f"give a number of at least low={self.low}")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Old log-probs."""
        return ("old_logprob",)

    @property
    def own_unit(self) -> Unit:
        """The update."""
        return "update"

    @property
    def own_foldable(self) -> bool:
        """No: the change is of one branch's advantage."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The formula of the class."""
        edge = 1e-8
        probability = tokens.logprob.detach().exp().clamp(edge, 1.0 - edge)
        old = tokens.stream("old_logprob").exp().clamp(edge, 1.0 - edge)
        away = probability.log() + tokens.entropy.detach()
        change = (tokens.advantage * probability / old * (1.0 - probability) * away).abs()
        rows = tokens.segments("all")
        largest = rows.spread(rows.maximum(change))
        if self.kind == "exponential":
            rate = -change.new_tensor(self.low).log() / largest.clamp(min=0.02)
            weight = (-rate * change).exp().clamp(self.low, 1.0)
        else:
            smallest = -rows.spread(rows.maximum(-change))
            width = largest - smallest
            share = (change - smallest) / torch.where(width > 0, width, 1.0)
            weight = torch.where(width > 0, self.high - share * (self.high - self.low), (self.low + self.high) / 2)
        return weight, weight


@dataclass(frozen=True)
class EntropyAdvantage(OverRows, Gate):
    """HAPO's differential advantage (arXiv:2509.16591): uncertain tokens count more once they have moved.

    With h of `normalised_entropy`, the factor is 1 + scale h for h > 0 where r is outside
    (1 - (1 - lower) / 2, 1 + (upper - 1) / 2), and for h <= 0 where r is inside; 1 elsewhere.

    Args:
        scale: above 0, at most 1.
        low: epsilon of the inner interval's lower end, above 0.
        high: epsilon of its upper end, above 0.
        quantile: see `normalised_entropy`.
        scope: see `normalised_entropy`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, EntropyAdvantage, Tokens
        >>> entropy = torch.tensor([0.0, 1.0, 2.0]).exp()  # scores -1, -1/2 and 0
        >>> tokens = Tokens(torch.zeros(3), entropy, {"weight_kl": torch.ones(3)})
        >>> EntropyAdvantage()(tokens, torch.zeros(3), Bounds())[0].tolist()
        [0.0, 0.5, 1.0]
    """

    scale: float = 1.0
    low: float = 0.2
    high: float = 0.2
    quantile: float = 0.8
    scope: Scope = "all"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 < self.scale <= 1.0, "scale", "give a number above 0, at most 1")
        self.require(0.0 < self.quantile < 1.0, "quantile", "give a number between 0 and 1")
        for name in ("low", "high"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The formula of the class."""
        ratio = log_ratio.detach().exp()
        height = normalised_entropy(tokens, self.quantile, self.scope)
        outside = (ratio <= 1.0 - self.low / 2.0) | (ratio >= 1.0 + self.high / 2.0)
        factor = torch.where((height > 0) == outside, 1.0 + self.scale * height, 1.0)
        return factor, factor


def _hash(number: Tensor, seed: int) -> Tensor:
    """SplitMix64 of (seed, number) without its sign: the same on every device."""
    mixed = (number + 1 + (seed << 32)) * -0x61C8864680B583EB  # wraps around
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ ((mixed >> shift) & (_LARGEST >> (shift - 1)))) * factor
    return (mixed ^ ((mixed >> 31) & (_LARGEST >> 30))) & _LARGEST


def score_of(tokens: Tokens, score: Score) -> Tensor:
    """The score of each row, without gradient."""
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
