"""SPO, simple policy optimisation: a quadratic penalty in place of PPO's clip (arXiv:2401.16025).

Beyond a clip there is no gradient, so a ratio that has left the range is not brought back. Here the objective is

    r A - |A| (r - 1)^2 / (2 epsilon)

whose best ratio is the bound itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import ClipBounds, Policy, Surrogate, Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Quadratic(Surrogate):
    """Pulls a ratio back once it has passed its bound.

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
    name="simple_po", source="arXiv:2401.16025", advantage=GroupRelative(), loss=Policy(surrogate=Quadratic())
)
