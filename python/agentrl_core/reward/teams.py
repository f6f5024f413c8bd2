"""One score for those who work together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class TeamScore(BatchComponent):
    """score = the sum (or mean) of the scores of a team: of all draws that have the same keys.

    A draw without a score adds nothing and stays without one. Source: CORY, arXiv:2410.06101, whose two agents both
    get the sum of their rewards.

    Args:
        group_by: comma-joined key columns that tell teams apart.
        how: `sum` or `mean`.

    Raises:
        RecipeError: `group_by` is empty.

    Example:
        >>> from agentrl_core.reward import TeamScore
        >>> TeamScore().needs
        (('draw', 'score'), ('draw', 'episode_id'))
    """

    phase: ClassVar[str] = "reward"

    group_by: str = "episode_id"
    how: Literal["sum", "mean"] = "sum"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(key_columns(self.group_by)), "group_by", "name key columns")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Scores, and who belongs to whom."""
        return needed("draw", "score", *key_columns(self.group_by))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        teams, score = rows.keys(self.group_by), rows.values("score")
        if self.how == "mean":
            made = group.statistics(score, teams, valid=rows.valid).mean[teams]
        else:
            made = group.sums(np.where(rows.valid, score, 0.0), teams)[teams]
        return rows.write(score=np.where(rows.valid, made, np.nan))
