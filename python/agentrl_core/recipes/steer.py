"""STEER: tokens whose update would change the entropy most count less (arXiv:2510.10150).

    Omega = |A p / p_old (1 - p) (log p + H)|,   w = exp(-alpha Omega / max Omega),   alpha = -log 0.8

The change of a token's entropy by a step on it is estimated to first order, and large changes of either sign are
damped, so that the entropy neither collapses nor explodes: the token of the largest change weighs 0.8, one without a
change 1. The weights follow the current policy: they are part of the loss.

Equations:
    Read: the public code, its README, and notes on the paper's fourth version; the paper's text was not read.

    - C1, estimated change of entropy: `EntropyChange`, no gradient through it.
    - N1, weight of the paper: `EntropyChange(low=0.8)`; alpha is -log(low).
    - C2, linear map of the code: an option, `EntropyChange("linear", low=0.8, high=1.2)`.
    - C3, exponential map of the code: an option, `EntropyChange(largest_at_least=0.02)`.
    - C4, loss: `Policy`, clip ranges 0.2 and 0.28, dual clip 10; all tokens count in the mean, whatever their weight.
    - C5, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.

Differs:
    - Entropies: those stored with the batch in the code; those of the current policy here, as its probabilities.
    - Largest change: of a micro-batch of 8 sequences in the code; of all tokens of the update here, so that weights do
      not depend on how a batch is split.
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
    """Weighs tokens down by how much a step on them would change the entropy.

        change = |A p / p_old (1 - p) (log p + H)|   (first order, with p between 1e-8 and 1 - 1e-8)

    `exponential`: exp(log(low) change / largest), 1 if none changes. `linear`: from `high` at the smallest change of
    the rows given to `low` at the largest, (low + high) / 2 if all are equal.

    Args:
        kind: `exponential` or `linear`.
        low: weight of the largest change, between 0 and 1.
        high: weight of the smallest change; only for `linear`.
        largest_at_least: the least that counts as the largest change, so that small ones are not damped; only for
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
        """The smallest change counts most."""
        self.require(self.high >= self.low, "high", f"give a number of at least low={self.low}")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The weight of each token, by how much a step on it would change the entropy."""
        edge = 1e-8
        probability = tokens.logprob.detach().exp().clamp(edge, 1.0 - edge)
        old = tokens.stream("old_logprob").exp().clamp(edge, 1.0 - edge)
        away = probability.log() + tokens.entropy.detach()
        change = (tokens.advantage * probability / old * (1.0 - probability) * away).abs()
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
