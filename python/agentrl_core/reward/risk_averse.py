"""Scores that count what the worst draws of a group get more than what the best do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class RiskAverse(BatchComponent):
    """score <- (1 - aversion) * r + aversion * (q - max(q - r, 0) / level), q the `level`-quantile of the group.

    The mean of the second part is the mean of the worst `level` of the group's scores (conditional value at risk).
    Group quantiles stand for the ones that ECRM (arXiv:2301.10932) learns for every state. Draws without a score
    neither vote nor get one.

    Args:
        aversion: weight of the second part, 0 to 1.
        level: above 0, at most 1.
        group_by: comma-joined key columns of the groups, or `batch`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import RiskAverse
        >>> RiskAverse(aversion=1.0).needs
        (('draw', 'score'), ('draw', 'group_id'))
    """

    phase: ClassVar[str] = "reward"

    aversion: float = 0.5
    level: float = 0.25
    group_by: str = "group_id"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 <= self.aversion <= 1.0, "aversion", "give a number from 0 to 1")
        self.require(0.0 < self.level <= 1.0, "level", "give a number above 0, at most 1")
        self.require(bool(self.group_by), "group_by", 'name key columns, or "batch"')

    @property
    def needs(self) -> tuple[Column, ...]:
        """The score and the keys of the groups."""
        return needed("draw", "score", *key_columns(self.group_by))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        score, groups = rows.values("score"), rows.keys(self.group_by)
        quantile = group.quantile(score, groups, self.level, valid=rows.valid)[groups]
        tail = quantile - np.maximum(quantile - score, 0.0) / self.level
        return rows.write(score=(1.0 - self.aversion) * score + self.aversion * tail)
