"""STEER: lower the weight of tokens whose update would change the entropy most (arXiv:2510.10150).

    Omega = |A p / p_old (1 - p) (log p + H)|,   w = exp(-alpha Omega / max Omega),   alpha = -log 0.8

Omega estimates to first order how much a step on a token would change the token's entropy. Large changes of either sign
are damped, so that the entropy neither collapses nor explodes: the token with the largest change has weight 0.8, a
token without a change has weight 1. The weights follow the current policy, so they are part of the loss.

Equations:
    Read: the public code, its README, and notes on the paper's fourth version; the paper's text was not read.

    - C1, estimated change of entropy: `EntropyChange`, without a gradient through it.
    - N1, weight of the paper: `EntropyChange(low=0.8)`; alpha is -log(low).
    - C2, linear map of the code: an option, `EntropyChange("linear", low=0.8, high=1.2)`.
    - C3, exponential map of the code: an option, `EntropyChange(largest_at_least=0.02)`.
    - C4, loss: `Policy`, clip ranges 0.2 and 0.28, dual clip 10; all tokens count in the mean, regardless of their
      weight.
    - C5, advantage: `GroupRelative`, std with divisor n - 1, plus 1e-6.

Differs:
    - Entropies: those stored with the batch in the code; here entropies and probabilities of the current policy.
    - Largest change: within a micro-batch of 8 sequences in the code; over all tokens of the update here, so that
      weights do not depend on how a batch is split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import ADVANTAGES, Clip, ClipBounds, Mask, Policy, Tokens, Unit, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class EntropyChange(Mask):
    """Lower the weight of tokens by how much a step on them would change the entropy.

        change = |A p / p_old (1 - p) (log p + H)|   (first order, with p between 1e-8 and 1 - 1e-8)

    `exponential`: exp(log(low) change / largest), or 1 if no change is above 0. `linear`: from `high` at the smallest
    change of the given rows to `low` at the largest, or (low + high) / 2 if all changes are equal.

    Args:
        kind: `exponential` or `linear`.
        low: weight of the largest change, between 0 and 1.
        high: weight of the smallest change; only for `linear`.
        largest_at_least: lower bound of the largest change, so that small changes are not damped; only for
            `exponential`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.steer import EntropyChange
        >>> logprob = torch.tensor([0.5, 0.5]).log()
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": logprob}
        >>> streams |= {"advantage_positive": torch.ones(2), "advantage_negative": torch.zeros(2)}
        >>> tokens = Tokens(logprob, torch.tensor([0.693, 0.0]), streams)  # log p + H is 0 at the first
        >>> EntropyChange()(tokens, torch.zeros(2), ClipBounds())[0].tolist()
        [1.0, 0.800000011920929]
    """

    reads: ClassVar[tuple[str | Column, ...]] = (*ADVANTAGES, "old_logprob")
    over: ClassVar[Unit] = "update"

    kind: Literal["exponential", "linear"] = "exponential"
    low: float = option(0.8, above=0, below=1)
    high: float = 1.2
    largest_at_least: float = option(0.0, at_least=0)

    def check_options(self) -> None:
        """Require high >= low, so that the smallest change has the largest weight."""
        self.require(self.high >= self.low, "high", f"give a number of at least low={self.low}")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the weights of tokens, the same for positive and for negative advantages."""
        edge = 1e-8
        probability = tokens.logprob.detach().exp().clamp(edge, 1.0 - edge)
        old = tokens.stream("old_logprob").exp().clamp(edge, 1.0 - edge)
        centred_logprob = probability.log() + tokens.entropy.detach()
        change = (tokens.advantage * probability / old * (1.0 - probability) * centred_logprob).abs()
        rows = tokens.segments("all")
        largest = rows.spread(rows.maximum(change))
        if self.kind == "exponential":
            most = largest.clamp(min=self.largest_at_least)
            share = change / torch.where(most > 0, most, 1.0)
            weight = (change.new_tensor(self.low).log() * share).exp()
        else:
            smallest = -rows.spread(rows.maximum(-change))
            width = largest - smallest
            share = (change - smallest) / torch.where(width > 0, width, 1.0)
            weight = torch.where(width > 0, self.high - share * (self.high - self.low), (self.low + self.high) / 2)
        return weight, weight


STEER = Recipe(
    name="steer",
    source="arXiv:2510.10150",
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28, dual=10.0), mask=EntropyChange()),
    minibatches=16,
)
