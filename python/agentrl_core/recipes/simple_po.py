"""SPO, simple policy optimisation: replace PPO's clip by a quadratic penalty (arXiv:2401.16025).

Beyond a clip range there is no gradient, so a ratio that has left the range is not brought back. Here the objective is

    r A - |A| (r - 1)^2 / (2 epsilon)

which is largest at the bound itself. The rest is PPO: A by GAE with a critic, gamma 0.99 and lambda 0.95, and ten
epochs of four minibatches. The paper's tasks are continuous control and Atari; here an action is a token.

Equations:
    Read: the paper's sections 4 and 5.1 with algorithm 1, and the authors' code.

    - 15, constrained problem: the problem that equation 16 solves; not computed: `Quadratic` is its solution.
    - 16, objective: `Quadratic`, epsilon the width of `Clip`.
    - 19, slope: the slope of `Quadratic`.
    - A1, total loss: `Gae(gamma=0.99, lam=0.95)`, `Policy`, and `Value` of the model `critic`.
    - C1, value loss and advantages of the code: options, `Value("token_mean", clip=0.2)` and
      `GroupRelative(column="advantage", level="token", group_by="batch", eps=1e-8)` after `Gae`, over the batch.

Differs:
    - Clip: the paper has none; the width of the clip range is epsilon here.
    - Weight of the value loss: 0.5 relative to the policy's loss in the paper; here the critic is a model with its own
      optimizer.
    - Normalisation: the code normalises advantages in each minibatch; neither the paper nor this recipe does.

Needs: the model `critic`, and its token column `value` from before the first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.loss import ClipBounds, Policy, Surrogate, Tokens, Train, Value

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Quadratic(Surrogate):
    """Pull a ratio back once it has passed its bound.

        r A - |A| (r - 1)^2 / (2 epsilon)

    with epsilon = upper - 1 for positive and 1 - lower for negative advantages. The objective is largest at the bound,
    and beyond it the gradient pulls the ratio back. Neither bound may be 1.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.simple_po import Quadratic
        >>> log_ratio = torch.tensor([1.2]).log()
        >>> tokens = Tokens(log_ratio, None, {"weight_kl": torch.ones(1)})
        >>> factors = Quadratic()(tokens, log_ratio, ClipBounds(0.8, 1.2))
        >>> [factor.tolist() for factor in factors]  # 1.2 -+ 0.2^2 / 0.4
        [[1.1], [1.3]]
    """

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the ratio with the quadratic penalty, for positive and for negative advantages."""
        ratio = log_ratio.exp()
        half = (ratio - 1.0).square() / 2.0
        return ratio - half / (bounds.upper - 1.0), ratio + half / (1.0 - bounds.lower)


SIMPLE_PO = Recipe(
    name="simple_po",
    source="arXiv:2401.16025",
    advantage=Gae(gamma=0.99, lam=0.95),
    loss=(Train(Value("token_mean"), model="critic"), Policy(surrogate=Quadratic())),
    epochs=10,
    minibatches=4,
)
