"""Ratios: how far the policy has moved from the one that sampled, as the logarithm of a ratio for every token."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.loss.base import Part, Unit
from agentrl_core.loss.tokens import LOG_RATIO_LIMIT, Tokens
from agentrl_core.model.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RatioProvider(Part, ABC):
    """Base of the ratios: a vector, the log of the ratio of each token; and perhaps a factor outside the surrogate."""

    @abstractmethod
    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The log-ratios `[N]`, with gradient, and detached factors `[N]` of the surrogate, or None for 1."""


@dataclass(frozen=True)
class Ratio(RatioProvider):
    """The ratio to the old policy, of a token or of a segment, from d = log p - log p_old within +-20.

    `token`: log r_t = d_t. Of a step (the tokens of one action: chunks, ranks, turns) or a sequence: the mean of d
    over its trained tokens (a geometric mean of ratios), or their sum (the joint ratio), within +-20 again. The
    sequence ratio with `mean` is GSPO (arXiv:2507.18071), the step ratio that of IPA and Rank-GRPO, the sums those of
    LOOP's turns and trajectories and of multi-agent PPO.

    Args:
        level: `token`, `step` (stream `step`) or `sequence` (stream `sequence`).
        reduce: `mean` or `sum` over the tokens of a step or sequence.
        gradient: how a token moves the ratio of its segment. `segment`: as it does; a joint ratio (`sum`) wants this.
            `token`: by its own log-prob alone, r_t = sg(r) p_t / sg(p_t), which is GSPO-token and what verl runs:
            advantages and weights may then differ inside a segment. With `mean` both give the same gradient where the
            advantage and the weight are one for the whole segment.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Policy(ratio=loss.Ratio("sequence"), clip=loss.Clip(3e-4, 4e-4), aggregate="sequence_mean").unit
        'trajectory'
    """

    level: Literal["token", "step", "sequence"] = "token"
    reduce: Literal["mean", "sum"] = "mean"
    gradient: Literal["token", "segment"] = "token"

    def check_options(self) -> None:
        """A token is no segment."""
        plain = self.reduce == "mean" and self.gradient == "token"
        self.require(self.level != "token" or plain, "level", "'token' has nothing to reduce: give step or sequence")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Old log-probs, and the ids of the segments."""
        return ("old_logprob",) if self.level == "token" else ("old_logprob", self.level)

    @property
    def own_unit(self) -> Unit:
        """The segment."""
        return "trajectory" if self.level == "sequence" else self.level

    @property
    def own_foldable(self) -> bool:
        """Only of tokens: branches that share a token differ in their segments."""
        return self.level == "token"

    @property
    def own_separable(self) -> bool:
        """Only of tokens."""
        return self.level == "token"

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The formula of the class."""
        if self.level == "token":
            return tokens.log_ratio, None
        segments = tokens.segments(self.level)
        reduce = segments.mean if self.reduce == "mean" else segments.sum
        whole = segments.spread(reduce(tokens.log_ratio)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        if self.gradient == "segment":
            return whole, None
        return whole.detach() + tokens.logprob - tokens.logprob.detach(), None


@dataclass(frozen=True)
class PrefixMinimum(RatioProvider):
    """MinPRO: the smallest ratio of the prefix stands for the product of its ratios.

        m_t = min over i < t of r_i (1 for the first token; never above 1 with `cap`),   objective = sg(m_t) f(r_t)

    From "A step back: prefix importance ratio stabilizes policy optimization". The bounded m
    replaces the cumulative ratio of off-policy policy gradients. Tool tokens are passed over. The rows of a sequence
    must lie in their order.

    Args:
        floor: m is at least this, so that one unlikely token does not silence the rest; from 0, below 1.
        cap: whether m is at most 1.
        inside: put m into the ratio that is bounded, log r = log sg(m) + d, instead of outside the surrogate.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import PrefixMinimum, Tokens
        >>> old = torch.full((3,), -2.0)
        >>> streams = {"weight_kl": torch.ones(3), "old_logprob": old, "sequence": torch.tensor([0, 0, 0])}
        >>> tokens = Tokens(torch.tensor([0.5, 2.0, 1.0]).log() + old, None, streams)
        >>> PrefixMinimum()(tokens)[1].tolist()
        [1.0, 0.5, 0.5]
    """

    floor: float = 0.0
    cap: bool = False
    inside: bool = False

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 <= self.floor < 1.0, "floor", "give a number from 0 and below 1")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Old log-probs and sequence ids."""
        return ("old_logprob", "sequence")

    @property
    def own_unit(self) -> Unit:
        """The trajectory."""
        return "trajectory"

    @property
    def own_foldable(self) -> bool:
        """No: it reads sequence ids."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The formula of the class."""
        smallest = tokens.segments("sequence").running_minimum(tokens.log_ratio.detach())
        smallest = torch.where(torch.isinf(smallest), 0.0, smallest)
        if self.cap:
            smallest = smallest.clamp(max=0.0)
        minimum = smallest.exp().clamp(min=self.floor)
        if self.inside:
            inner = tokens.log_ratio + minimum.log().clamp(min=-LOG_RATIO_LIMIT)
            return inner.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), None
        return tokens.log_ratio, minimum


@dataclass(frozen=True)
class Mixture(RatioProvider):
    """A ratio to a mixture of behaviours: multiple importance sampling (RL-PLUS, arXiv:2508.00222).

        r = p / ((1 - share) p_old + share q)

    Bounded by 1 / share where q >= p, however unlikely the old policy finds the token. RL-PLUS takes, for tokens of
    an unknown expert, (p_old + p_expert) / 2 with p_expert = (p_old + u) / 2: share 0.25, prior u.

    Args:
        share: of q in the mixture; between 0 and 1.
        prior: q, one probability for every token: 1 / |V| in the paper, 1 in its code; above 0, at most 1. None: q is
            the stream `other_logprob`, the log-probs of a second behaviour policy.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Policy(expert=loss.Expert("mixture", share=0.25, prior=1 / 151_936), clip=None).streams
        ('advantage_positive', 'advantage_negative', 'weight_kl', 'old_logprob', 'expert')
    """

    share: float = 0.25
    prior: float | None = 1.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 < self.share < 1.0, "share", "give a number between 0 and 1")
        fits = self.prior is None or 0.0 < self.prior <= 1.0
        self.require(fits, "prior", "give a probability, or None for the stream other_logprob")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Old log-probs, and those of the second behaviour."""
        return ("old_logprob",) if self.prior is not None else ("old_logprob", "other_logprob")

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The formula of the class."""
        return mixture(tokens, self.share, self.prior), None


@dataclass(frozen=True)
class StratifiedRatio(RatioProvider):
    """Log-ratios centred and scaled within strata: GRPO-Guard's RatioNorm (arXiv:2510.22319), carried over to tokens.

        log r_t = (d_t - mean_s(d)) * std(d) / (std_s(d) + 1e-6),   s the stratum of t

    The mean of log r is negative by itself, which shifts every ratio below the upper bound; centred, the bound is
    felt on both sides. The statistics are detached population values over the rows given; a stratum of fewer than
    `smallest` rows takes those of all rows. The paper's strata are denoising steps; ours are whatever the stream
    `stratum` numbers (a turn, a position, an entropy band), an adaptation.

    Args:
        smallest: rows that a stratum needs for statistics of its own, at least 2.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import StratifiedRatio, Tokens
        >>> old = torch.full((2,), -2.0)
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": old, "stratum": torch.tensor([0, 0])}
        >>> tokens = Tokens(torch.tensor([-1.8, -1.6]), None, streams)
        >>> StratifiedRatio()(tokens)[0].tolist()  # too few for a stratum: centred on the mean of all, 0.3
        [-0.1, 0.1]
    """

    smallest: int = 32

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.smallest >= 2, "smallest", "give a whole number of at least 2")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Old log-probs and strata."""
        return ("old_logprob", "stratum")

    @property
    def own_unit(self) -> Unit:
        """The update."""
        return "update"

    @property
    def own_foldable(self) -> bool:
        """No: its means count rows."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The formula of the class."""
        moments = []
        for segments in (tokens.segments("all"), tokens.strata):
            fixed = tokens.log_ratio.detach()
            mean = segments.spread(segments.mean(fixed))
            spread = segments.spread(segments.mean((fixed - mean) ** 2)).sqrt()
            moments.append((mean, spread))
        large = tokens.strata.spread(tokens.strata.count) >= self.smallest
        (pool_mean, pool), (mean, spread) = moments
        own = (tokens.log_ratio - mean) * (pool / (spread + 1e-6))
        centred = torch.where(large, own, tokens.log_ratio - pool_mean)
        return centred.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), None


def mixture(tokens: Tokens, share: float, prior: float | None) -> Tensor:
    """The log-ratio of `Mixture`."""
    old = tokens.stream("old_logprob")
    other = tokens.stream("other_logprob") if prior is None else torch.full_like(old, math.log(prior))
    behaviour = torch.logaddexp(old + math.log1p(-share), other + math.log(share))
    return (tokens.logprob - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
