"""SAPO, soft adaptive policy optimisation: replace the clip by a sigmoid (arXiv:2511.20347).

With a hard clip, a token has either its full gradient or none. The sigmoid reduces the gradient smoothly, and faster
for negative advantages, whose gradients spread over the vocabulary.

Equations:
    Read: the abstract, notes of others on the paper's equations, and two public ports; the paper's text was not read.

    - N1, objective: `Policy`, `aggregate="sequence_mean"`, without a clip or a KL.
    - N2, gate: `Smooth`.
    - N3, temperature of the gate: `Smooth(positive=1.0, negative=1.05)`.
    - N4, advantage: `GroupRelative`; its std divides by n - 1, and 1e-6 is added to it.
    - N5, gradient: the gradient of `Smooth` with respect to the token's log-prob.
    - N6, gradient by logit: not computed: it is the gradient of the softmax, the reason for the larger temperature of
      negative advantages.
    - N7, gate of the sequence: not computed: it is an analysis of N5 for small steps, not a step of the algorithm.
    - C1, loss of verl: `Policy`; a log-ratio is bounded at 20 here too.
    - C2, loss and advantage of TRL: `Policy`; tool tokens are in neither sum.

Differs:
    - Groups of unequal size: the formula is a mean over each group and then over queries; here, as in the ports, it is
      one mean over all responses.
    - Standard deviation: the sources do not state which one; n - 1 here.
    - Optimizer steps: 4 per batch in mathematics, as here; 2 for Qwen3-VL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import ClipBounds, Policy, Surrogate, Tokens, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Smooth(Surrogate):
    """Reduce the gradient of a token smoothly as its ratio r leaves 1: the surrogate is 4 / t sigmoid(t (r - 1)).

    At r = 1 its slope equals the slope of r; away from 1 the slope falls.

    Args:
        positive: t for positive advantages, above 0.
        negative: t for negative advantages, above 0; larger, because their gradients spread over the vocabulary.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.sapo import Smooth
        >>> log_ratio = torch.tensor([1.0]).log()
        >>> factors = Smooth()(Tokens(log_ratio, None, {"weight_kl": torch.ones(1)}), log_ratio, ClipBounds())
        >>> [factor.tolist() for factor in factors]  # 2 / t
        [[2.0], [1.905]]
    """

    positive: float = option(1.0, above=0)
    negative: float = option(1.05, above=0)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the sigmoid surrogate of each token, for positive and for negative advantages."""
        deviation = log_ratio.exp() - 1.0
        return (
            torch.sigmoid(self.positive * deviation) * (4.0 / self.positive),
            torch.sigmoid(self.negative * deviation) * (4.0 / self.negative),
        )


SAPO = Recipe(
    name="sapo",
    source="arXiv:2511.20347",
    advantage=GroupRelative(),
    loss=Policy(clip=None, surrogate=Smooth(), aggregate="sequence_mean"),
    minibatches=4,
)
