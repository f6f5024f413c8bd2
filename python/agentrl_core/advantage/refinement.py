"""Advantages of rollouts that were refined with real futures beside those that were not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.advantage.normalisation import Normalisation
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group, keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Refinement(BatchComponent):
    """advantage = 1 of a refined draw that is worth imitating, else 0; the others are compared with each other.

    The draw column `refined` tells the two apart. A refined draw is worth imitating if it succeeded and its score is
    above the mean of the group's plain draws and above that of its refined ones. Draws without a score neither vote nor
    get a value. Source: Dyna-GRPO, arXiv:2510.09577.

    Args:
        normalisation: how plain draws are compared.

    Example:
        >>> from agentrl_core.advantage import Refinement
        >>> Refinement().needs
        (('draw', 'score'), ('draw', 'success'), ('draw', 'group_id'), ('draw', 'refined'))
    """

    phase: ClassVar[str] = "advantage"

    normalisation: Normalisation = Normalisation()

    @property
    def needs(self) -> tuple[Column, ...]:
        """Score, success, group and kind of each draw."""
        return needed("draw", "score", "success", "group_id", "refined")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

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
