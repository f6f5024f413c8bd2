"""SAPO, soft adaptive policy optimisation: a sigmoid in place of the clip (arXiv:2511.20347).

A hard clip either learns from a token in full or not at all. The sigmoid lets its gradient fall off smoothly, faster
for negative advantages, whose gradients spread over the vocabulary.

Equations:
    Read: the abstract, notes of others on the paper's equations, and two public ports; the paper's text was not read.

    - N1, objective: `Policy`, `aggregate="sequence_mean"`, without a clip or a KL.
    - N2, gate: `Smooth`.
    - N3, temperature of the gate: `Smooth(positive=1.0, negative=1.05)`.
    - N4, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.
    - N5, gradient: that of `Smooth` by the token's log-prob.
    - N6, gradient by logit: not computed: it is that of the softmax, the reason for the larger temperature.
    - N7, gate of the sequence: not computed: an analysis of N5 for small steps, and no step of the algorithm.
    - C1, loss of verl: `Policy`; a log-ratio is bounded at 20 here too.
    - C2, loss and advantage of TRL: `Policy`; tokens of tools are in neither sum.

Differs:
    - Groups of unequal size: the formula is a mean over each group and then over queries; here, as in the ports, one
      over all responses.
    - Standard deviation: which one is not stated; n - 1 here.
    - Optimizer steps: 4 a batch in mathematics, as here; 2 for Qwen3-VL.
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
    """Lets the gradient of a token fall off smoothly as its ratio leaves 1: 4 / t sigmoid(t (r - 1)).

    At r = 1 its slope is that of r; away from 1 it falls off.

    Args:
        positive: t for positive advantages, above 0.
        negative: t for negative ones, above 0; larger, because their gradients spread over the vocabulary.

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
        """The smooth gate of each token, one for either sign of the advantage."""
        away = log_ratio.exp() - 1.0
        return (
            torch.sigmoid(self.positive * away) * (4.0 / self.positive),
            torch.sigmoid(self.negative * away) * (4.0 / self.negative),
        )


SAPO = Recipe(
    name="sapo",
    source="arXiv:2511.20347",
    advantage=GroupRelative(),
    loss=Policy(clip=None, surrogate=Smooth(), aggregate="sequence_mean"),
    minibatches=4,
)
