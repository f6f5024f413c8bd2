"""DPPO: mask a token by how far its probability has moved, not by its ratio (arXiv:2602.04879).

    L = - mean over tokens of M_t sg(min(r_t, 5)) A_t log p_t,   A = R - mean(R)
    M_t = 0 if A_t > 0 and p_t - p_old > 0.2, or A_t < 0 and p_old - p_t > 0.2, else 1

The ratio of an unlikely token leaves a clip range after a tiny change, that of a likely one after a large change only.
A divergence of the two probabilities treats both alike. This is the paper's binary total variation; its binary KL is
`DivergenceMask("kl", 0.05, 0.05)`. The top-K divergences are left out. p_old is the policy that sampled. verl's
`dppo_tv` bounds the ratio at 20: `Reinforce("ratio", "ratio", at_most=20)`.

Equations:
    Read: the paper's sections 4.3 to 5.3 with appendices C, E and F.3, and the authors' code.

    - 12, objective: `Policy` with `DivergenceMask`; the gradient of equation 12 is that of `Reinforce` without
      `at_most`.
    - 13, binary TV: `DivergenceMask("tv")`.
    - 14, binary KL: `DivergenceMask("kl")`.
    - 15 and 16, top-K TV and KL: left out: masks read the probability of the sampled token only, not those of the
      sampler's likeliest tokens.
    - 23, gradient: `Reinforce("ratio", "ratio", at_most=5.0)`; the advantage is `GroupRelative(scale="none")`.

Differs:
    - Optimizer steps: 8, as in the scaling runs, whose bound C = 5 and threshold 0.2 are those here too; the stability
      test makes 4, with a threshold of 0.15 and no bound.
    - Binary KL: 1e-8 is added to both complements, as in the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import ClipBounds, Mask, Policy, Reinforce, Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DivergenceMask(Mask):
    """Mask tokens whose probability has moved too far, in place of a ratio's bounds.

    `tv`: a positive advantage needs p - p_old <= high, a negative one p - p_old >= -low. `kl`: the divergence of the
    two-valued distributions, p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)), is at most `high` or
    `low`, or p has moved against the advantage. Use it with `Reinforce("ratio", "ratio", at_most=5)` and `clip=None`.

    Args:
        kind: `tv` or `kl`.
        low: above 0.
        high: above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.dppo import DivergenceMask
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": torch.tensor([0.5, 0.5]).log()}
        >>> tokens = Tokens(torch.tensor([0.6, 0.9]).log(), None, streams)
        >>> [factor.tolist() for factor in DivergenceMask()(tokens, tokens.log_ratio, ClipBounds())]
        [[1.0, 0.0], [1.0, 1.0]]
    """

    reads: ClassVar[tuple[str | Column, ...]] = ("old_logprob",)

    kind: Literal["tv", "kl"] = "tv"
    low: float = option(0.2, above=0)
    high: float = option(0.2, above=0)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """0 for tokens whose probability has moved too far in the direction of their advantage, else 1."""
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


DPPO = Recipe(
    name="dppo",
    source="arXiv:2602.04879",
    advantage=GroupRelative(scale="none"),
    loss=Policy(clip=None, surrogate=Reinforce("ratio", "ratio", at_most=5.0), mask=DivergenceMask()),
    minibatches=8,
)
