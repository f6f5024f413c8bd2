"""Dyna-Mind (Dyna-GRPO): an agent learns to simulate what its actions lead to (arXiv:2510.09577).

Some rollouts of a task are refined: the environment runs what the policy planned, and the policy answers again with the
real futures in its prompt. The draw column `refined` marks those; a rollout that makes them is the environment's, and
not built here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.advantage import Normalisation
from agentrl_core.component import BatchComponent, Column, Rows, draw
from agentrl_core.loss import Policy
from agentrl_core.operators import group, keys
from agentrl_core.recipe import Recipe

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Refinement(BatchComponent):
    """Has refined rollouts imitated where they are better than the others, and the others compared with each other.

    The advantage of a refined draw is 1 where it is worth imitating, else 0. The draw column `refined` tells the two
    apart. A refined draw is worth imitating if it succeeded and its score is above the mean of the group's plain draws
    and above that of its refined ones. Draws without a score neither vote nor get a value.

    Args:
        normalisation: how plain draws are compared.

    Example:
        >>> from agentrl_core.recipes.dyna_mind import Refinement
        >>> Refinement().needs
        (draw('score'), draw('success'), draw('group_id'), draw('refined'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("success"), draw("group_id"), draw("refined"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    normalisation: Normalisation = Normalisation()

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        score, groups, refined = rows.values("score"), rows.keys("group_id"), rows.flags("refined")
        kinds = keys.composite(groups, refined.astype(np.int64))
        plain = self.normalisation.compare(score, kinds, valid=rows.valid & ~refined)
        # The larger of the two means of a group; a kind that it lacks is no bar.
        means = group.statistics(score, kinds, valid=rows.valid).mean[kinds]
        bar = group.statistics(means, groups, valid=np.isfinite(means)).most[groups]
        worthy = refined & rows.valid & rows.flags("success") & (score > bar)
        return rows.write(advantage=np.where(refined, worthy, plain))


DYNA_MIND = Recipe(name="dyna_mind", source="arXiv:2510.09577", advantage=Refinement(), loss=Policy())
