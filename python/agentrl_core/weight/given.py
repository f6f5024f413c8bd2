"""Weights that somebody else made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column, Level
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ColumnScaled(BatchComponent):
    """weight *= x of a column, over its mean in the batch where asked.

    Rows where x is not known have factor 1. Source: GUI-G1, arXiv:2505.15810 (`column="difficulty"`, a weight of each
    task).

    Args:
        column: of at least 0.
        level: of the rows: `draw`, `step` or `token`.
        mean_one: whether it is divided by its mean over the rows of the batch that count.

    Raises:
        RecipeError: no column is named, or none of its values is known.

    Example:
        >>> from agentrl_core.weight import ColumnScaled
        >>> ColumnScaled(column="difficulty").makes
        (('draw', 'weight'),)
    """

    phase: ClassVar[str] = "weight"

    column: str = "task_weight"
    level: Level = "draw"
    mean_one: bool = False

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(self.column), "column", "name a column")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The factors."""
        return needed(self.level, self.column)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight of each row."""
        return needed(self.level, "weight")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, self.level)
        known = rows.known(self.column)
        factor = np.where(known, rows.values(self.column), 1.0)
        if self.mean_one:
            factor = np.asarray(group.mean_one(factor, rows.keys("batch"), valid=known))
        return rows.scale(np.where(known, factor, 1.0))
