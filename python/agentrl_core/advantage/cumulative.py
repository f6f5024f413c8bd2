"""Advantages that also see how a task went before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agentrl_core.advantage.normalisation import Normalisation
from agentrl_core.component.component import Column, StatefulComponent
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class CumulativeStandardised(StatefulComponent):
    """advantage = that of two smoothed scores which is nearer to 0. Source: DCPO, arXiv:2509.02333.

    At the i-th visit to a task, with A_new = (r - mean) / std of this visit and A_all the same with mean and standard
    deviation over all visits (`agentrl_core.group.running_moments`), 0 where the deviation is:

        S_new = ((i - 1) * A_new + A_all) / i,  S_all = (A_new + (i - 1) * A_all) / i

    The advantage is S_new where |S_new| <= |S_all|, else S_all: a group of equal scores still has a direction when
    other visits went differently. Draws without a score neither vote nor get a value.

    Args:
        key: a draw column that means the same in every batch, such as `task_id`: a visit is all draws of a batch that
            have it.
        ddof: the variance divides by (count - ddof); 0 or 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import CumulativeStandardised
        >>> CumulativeStandardised().initial_state()
        {}
    """

    phase: ClassVar[str] = "advantage"

    key: str = "task_id"
    ddof: int = 1

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(self.key), "key", "name a column")
        self.require(self.ddof in (0, 1), "ddof", "give 0 or 1")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Score and task of each draw."""
        return needed("draw", "score", self.key)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def initial_state(self) -> dict[str, Any]:
        """No visits."""
        return {}

    def advance(self, batch: Batch, state: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Return `batch` with the column `advantage` on draws, and the moments of all visits."""
        rows = Rows(batch, "draw")
        score, valid = rows.values("score"), rows.valid
        mean, std, visits, state = group.running_moments(
            state, score, rows.names(self.key), ddof=self.ddof, valid=valid
        )
        ours = Normalisation(ddof=self.ddof, eps=0.0).compare(score, rows.keys(self.key), valid=valid)
        distance = np.where(valid, score - mean, 0.0)
        everyone = np.divide(distance, std, out=np.zeros(len(rows)), where=std > 0.0)
        before = np.maximum(visits - 1.0, 0.0)
        new = (before * ours + everyone) / np.maximum(visits, 1.0)
        total = (ours + before * everyone) / np.maximum(visits, 1.0)
        return rows.write(advantage=np.where(np.abs(new) <= np.abs(total), new, total)), state
