"""Scores by comparison within a group: win rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, draw
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators.group_comparison import win_rates

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class WinRate(BatchComponent):
    """Score a draw by its mean win probability against the draws of its group with which it was compared.

    The draw columns `preference.0`, `preference.1`, ... hold P[this draw beats the group's draw number 0, 1, ...], NaN
    if they were not compared. One direction is enough; of two the mean counts. A draw without comparisons scores 0.5.
    Source: SPO, arXiv:2401.04056; SPPO arXiv:2405.00675 (`include_self=True`).

    Args:
        include_self: whether the comparison of a draw with itself, a tie, counts too.

    Example:
        >>> from agentrl_core.reward import WinRate
        >>> WinRate().needs
        (draw('preference.0'), draw('group_id'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("preference.0"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    include_self: bool = False

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
            row, number = first[alone[0]], opponent[alone[0]]
            raise InvalidInputError(
                f"preference.{number} of draw {row} is {preferences[row, number]}, but its group has "
                f"{sizes[groups[row]]} draws; use NaN for draws that do not exist"
            )
        second = members[starts[groups[first]] + opponent]
        other = first != second
        first, second, probability = first[other], second[other], preferences[first, opponent][other]
        # A pair counts once, with the mean of its two directions if both are given.
        ends = np.stack([np.minimum(first, second), np.maximum(first, second)])
        pairs, place = np.unique(ends, axis=1, return_inverse=True)
        counts = np.bincount(place.reshape(-1), minlength=pairs.shape[1])
        wins = np.bincount(
            place.reshape(-1), weights=np.where(first < second, probability, 1.0 - probability), minlength=len(counts)
        )
        scores = win_rates(pairs[0], pairs[1], wins / counts, len(rows))
        if self.include_self:
            compared = np.bincount(pairs.reshape(-1), minlength=len(rows))
            scores = (scores * compared + 0.5) / (compared + 1.0)
        return rows.write(score=scores)
