"""SPO, simple policy optimisation: a quadratic penalty in place of PPO's clip (arXiv:2401.16025).

Beyond a clip there is no gradient, so a ratio that has left the range is not brought back. Here the objective is

    r A - |A| (r - 1)^2 / (2 epsilon)

whose best ratio is the bound itself. The rest is PPO: A by GAE with a critic, gamma 0.99 and lambda 0.95, and ten
epochs of four minibatches. The paper's actions are those of continuous control and of Atari; here an action is a token.

Equations:
    Read: the paper's sections 4 and 5.1 with algorithm 1, and the authors' code.

    - 15, constrained problem: what equation 16 solves; not computed: `Quadratic` is its solution.
    - 16, objective: `Quadratic`, epsilon the width of `Clip`.
    - 19, slope: that of `Quadratic`.
    - A1, total loss: `Gae(gamma=0.99, lam=0.95)`, `Policy`, and `Value` of the model `critic`.
    - C1, value loss and advantages of the code: options, `Value("token_mean", clip=0.2)` and
      `GroupRelative(column="advantage", level="token", group_by="batch", eps=1e-8)` after `Gae`, over the batch.

Differs:
    - Clip: the paper has none; its range here is epsilon.
    - Weight of the value loss: 0.5 beside the policy's loss in the paper; the critic is a model with its own optimizer
      here.
    - Normalisation: in each minibatch in the code; neither in the paper nor here.

Needs: the model critic; the token column `value` of it, from before the first step.
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

    with epsilon = upper - 1 for positive and 1 - lower for negative advantages: the best ratio is the bound itself,
    and beyond it the gradient pulls back. Give both bounds a width.

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
        """The ratio, pulled back by a quadratic once it has passed its bound."""
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
