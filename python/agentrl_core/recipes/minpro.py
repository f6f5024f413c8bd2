"""MinPRO: replace the product of the ratios of a token's prefix by the smallest of these ratios (arXiv:2601.22718).

    m_t = min over i < t of r_i (1 for the first token)
    L = - mean over all tokens of sg(clip(m_t r_t, 0.8, 1.2)) A log p_t

The exact off-policy gradient of a token contains the product of the ratios before it, which explodes or vanishes with
the length. The smallest factor is bounded, and falls when the product falls. The product of this minimum and the
token's ratio is clipped and detached, so every token keeps a gradient.

Equations:
    Read: the abstract, and a survey with the objective; the paper's text was not read.

    - N1, prefix ratio: left out: the method replaces it.
    - N2, minimum prefix ratio: `PrefixMinimum`.
    - N3, objective: `Policy`, `PrefixMinimum(inside=True)`, `Reinforce("clamped", "clamped")`, mean over tokens.
    - N4, advantage: `GroupRelative`; its std divides by n - 1, and 1e-6 is added to it.

Differs:
    - Clip ranges: the sources do not state them; 0.2 on both sides here.
    - First token: the sources do not state its minimum; 1 here.
    - Optimizer steps a batch: not stated, but the rollouts are two or more steps old; 1 here.
      `MINPRO.replace(minibatches=4)` makes rollouts older within a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import ImportanceRatio, Policy, Reinforce, Tokens, Unit, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PrefixMinimum(ImportanceRatio):
    """Weight a token by the smallest ratio of the tokens before it.

        m_t = min over i < t of r_i (1 for the first token; never above 1 if `bounded`),   objective = sg(m_t) f(r_t)

    Tool tokens are skipped. The rows of a sequence must be in order.

    Args:
        at_least: lower bound of m, so that one unlikely token does not silence all later ones; from 0, below 1.
        bounded: whether m is at most 1.
        inside: multiply the ratio by m before it is clipped, log r = log sg(m) + d, instead of multiplying the
            surrogate.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.minpro import PrefixMinimum
        >>> old = torch.full((3,), -2.0)
        >>> streams = {"weight_kl": torch.ones(3), "old_logprob": old, "sequence": torch.tensor([0, 0, 0])}
        >>> tokens = Tokens(torch.tensor([0.5, 2.0, 1.0]).log() + old, None, streams)
        >>> PrefixMinimum()(tokens)[1].tolist()
        [1.0, 0.5, 0.5]
    """

    reads: ClassVar[tuple[str | Column, ...]] = ("old_logprob", "sequence")
    over: ClassVar[Unit] = "trajectory"

    at_least: float = option(0.0, at_least=0, below=1)
    bounded: bool = False
    inside: bool = False

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """Return the log-ratio of each token, and the smallest earlier ratio (None with `inside`)."""
        smallest = tokens.segments("sequence").running_minimum(tokens.log_ratio.detach())
        smallest = torch.where(torch.isinf(smallest), 0.0, smallest)
        if self.bounded:
            smallest = smallest.clamp(max=0.0)
        minimum = smallest.exp().clamp(min=self.at_least)
        if self.inside:
            return tokens.limited(tokens.log_ratio + tokens.limited(minimum.log())), None
        return tokens.log_ratio, minimum


MINPRO = Recipe(
    name="minpro",
    source="arXiv:2601.22718",
    advantage=GroupRelative(),
    loss=Policy(ratio=PrefixMinimum(inside=True), surrogate=Reinforce("clamped", "clamped")),
)
