"""A quality in steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Tiers(BatchComponent):
    """score = ceil(count * x) / count, of a quality x in [0, 1]: the tier that it reached, closed above; 0 stays 0.

    A gate for what is not valid at all is a `Fuse(operation="require")` before or after it. Source: SSL (sweet spot
    learning).

    Args:
        count: how many tiers, at least 1.
        column: the quality.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import Tiers
        >>> Tiers(count=5).needs
        (('draw', 'score'),)
    """

    phase: ClassVar[str] = "reward"

    count: int = 4
    column: str = "score"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.count >= 1, "count", "give a number of at least 1")
        self.require(bool(self.column), "column", "name a column")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The quality of each draw."""
        return needed("draw", self.column)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score of each draw."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws; NaN where the quality is unknown."""
        rows = Rows(batch, "draw")
        quality = rows.values(self.column)
        known = ~np.isnan(quality)
        quality[known] = _core.reward_tiers(quality[known], self.count)
        return rows.write(score=quality)
