"""Scores from comparisons of the draws of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class WinRate(BatchComponent):
    """score = mean probability with which the draw beats the others of its group that it was compared with.

    The draw columns `preference.0`, `preference.1`, ... hold P[this draw beats the group's draw number 0, 1, ...], NaN
    where nobody compared them; one of the two directions is enough. A draw that was never compared scores 0.5. Source:
    SPO, arXiv:2401.04056; SPPO arXiv:2405.00675 (`include_self=True`).

    Args:
        include_self: whether a comparison of the draw with itself, a tie, counts too.

    Example:
        >>> from agentrl_core.reward import WinRate
        >>> WinRate().needs
        (('draw', 'preference.0'), ('draw', 'group_id'))
    """

    phase: ClassVar[str] = "reward"

    include_self: bool = False

    @property
    def needs(self) -> tuple[Column, ...]:
        """The comparisons of each draw."""
        return needed("draw", "preference.0", "group_id")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score of each draw."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        groups, preferences = rows.keys("group_id"), rows.matrix("preference")
        members = np.argsort(groups, kind="stable")
        sizes = np.bincount(groups, minlength=1)
        starts = np.cumsum(sizes) - sizes
        first, opponent = np.nonzero(np.isfinite(preferences))
        alone = np.flatnonzero(opponent >= sizes[groups[first]])
        if len(alone):
            draw, number = first[alone[0]], opponent[alone[0]]
            raise InvalidInputError(
                f"preference.{number} of draw {draw} is {preferences[draw, number]}, but its group has "
                f"{sizes[groups[draw]]} draws; use NaN where there is no such draw"
            )
        second = members[starts[groups[first]] + opponent]
        other = first != second
        first, second, probability = first[other], second[other], preferences[first, opponent][other]
        score = _core.reward_win_rates(first.astype(np.uint32), second.astype(np.uint32), probability, len(rows))
        if self.include_self:
            compared = np.bincount(np.concatenate([first, second]), minlength=len(rows))
            score = (score * compared + 0.5) / (compared + 1.0)
        return rows.write(score=score)
