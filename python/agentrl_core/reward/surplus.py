"""Failures that outnumber the successes of their group are left out at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class DropSurplus(BatchComponent):
    """score = NaN for draws below their group's mean, chosen at random until they are no more than the others.

    Draws that are left out neither vote nor are trained, so the group's mean rises. Which ones follows from `seed`, the
    iteration and the trajectories. Source: RED-Drop, arXiv:2509.24203.

    Args:
        seed: at least 0.

    Raises:
        RecipeError: the seed is negative.

    Example:
        >>> from agentrl_core.reward import DropSurplus
        >>> DropSurplus().makes
        (('draw', 'score'),)
    """

    phase: ClassVar[str] = "reward"

    seed: int = 0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.seed >= 0, "seed", "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The score and the group, and what the choice is keyed by."""
        return needed("draw", "score", "group_id", "iteration", "trajectory_id")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        score, groups = rows.values("score"), rows.keys("group_id")
        mean = group.statistics(score, groups, valid=rows.valid).mean[groups]
        worse = rows.valid & (score < mean)
        count = int(groups.max()) + 1 if len(groups) else 0
        better = np.bincount(groups[rows.valid & ~worse], minlength=count)
        iteration, trajectory = (batch.column(name, "draw").astype(np.int64) for name in ("iteration", "trajectory_id"))
        chance = _core.reward_dither(
            np.zeros(len(rows)), (iteration << 32) ^ trajectory, self.seed, amplitude=1.0, law="uniform"
        )
        place = group.rank(chance, groups, valid=worse)
        return rows.write(score=np.where(worse & (place >= better[groups]), np.nan, score))
