"""XRPO: targeted exploration and exploitation (arXiv:2510.06672).

A success that the policy hardly expected gets more: with s the mean log-prob of a draw's trained tokens and mean(s)
that of its group,

    A + min(max(2.5 (1 - exp(s - mean(s))), 0), 0.5 A)    where A > 0,

and A is GRPO's. Which tasks get more rollouts, and worked examples for tasks that all fail, belong to phase select;
this recipe takes tasks as they come. No public code of the authors is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.component.rows import mean_of_tokens
from agentrl_core.loss import Policy
from agentrl_core.operators import group
from agentrl_core.recipe import Recipe

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Novelty(BatchComponent):
    """Adds to positive advantages of draws that were unlikely among those of their group.

    The formula is that of the file.

    Args:
        logprob: token column of log-probs.
        coefficient: lambda.
        at_most: kappa: the largest addition, in units of the advantage.

    Raises:
        RecipeError: an option is out of range, or the column has no known value.

    Example:
        >>> from agentrl_core.recipes.xrpo import Novelty
        >>> Novelty().makes
        (draw('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    logprob: str = column_name("behaviour_logprob", level="token")
    coefficient: float = option(2.5, at_least=0.0)
    at_most: float = option(0.5, at_least=0.0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `advantage` on draws."""
        rows = Rows(batch, "draw")
        advantages = rows.values("advantage")
        means, known = mean_of_tokens(batch, self.logprob, "draw")
        above = group.normalise(means, rows.keys("group_id"), scale="none", valid=known)
        rarities = np.maximum(-self.coefficient * np.expm1(above), 0.0)
        bonuses = np.where(known & (advantages > 0.0), np.minimum(rarities, self.at_most * advantages), 0.0)
        return rows.write(advantage=advantages + bonuses)


XRPO = Recipe(
    name="xrpo",
    source="arXiv:2510.06672",
    advantage=(GroupRelative(), Novelty()),
    loss=Policy(),
)
