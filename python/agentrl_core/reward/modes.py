"""A price for more effort than a task needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ModeCost(BatchComponent):
    """score *= 1 - p^power of draws that chose a dearer mode on an easy task, p the success of its forced draws.

    Some draws of a group are forced into a mode, the others choose. A group is easy if more than `easy` of its draws
    that were forced into the `cheapest` mode succeeded; then draws in another mode get less the more often the group's
    forced draws succeeded. Source: A2FM, arXiv:2510.12838 (the threshold is not given).

    Args:
        mode: draw column of whole numbers: which mode the draw was in.
        forced: draw column that is other than 0 where the mode was forced.
        cheapest: number of the cheapest mode.
        easy: share of successes, 0 to 1.
        power: above 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import ModeCost
        >>> ModeCost().needs
        (('draw', 'score'), ('draw', 'success'), ('draw', 'group_id'), ('draw', 'mode'), ('draw', 'forced'))
    """

    phase: ClassVar[str] = "reward"

    mode: str = "mode"
    forced: str = "forced"
    cheapest: int = 0
    easy: float = 0.5
    power: float = 2.0

    def check_options(self) -> None:
        """Ranges as documented."""
        for option in ("mode", "forced"):
            self.require(bool(getattr(self, option)), option, "name a column")
        self.require(0.0 <= self.easy <= 1.0, "easy", "give a number from 0 to 1")
        self.require(self.power > 0.0, "power", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Scores, whose draws succeeded, and their modes."""
        return needed("draw", "score", "success", "group_id", self.mode, self.forced)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        groups, won = rows.keys("group_id"), rows.flags("success").astype(np.float64)
        cheap = rows.values(self.mode) == self.cheapest
        forced = rows.valid & rows.flags(self.forced)
        rate = np.nan_to_num(group.statistics(won, groups, valid=forced).mean, nan=0.0)[groups]
        quick = np.nan_to_num(group.statistics(won, groups, valid=forced & cheap).mean, nan=0.0)[groups]
        score = rows.values("score")
        return rows.write(score=np.where((quick > self.easy) & ~cheap, score * (1.0 - rate**self.power), score))
