"""A score with another column added, multiplied in, or as a gate before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Fuse(BatchComponent):
    """The score s with a column x: s + min(weight * x, cap), s * x, or s where x passes a threshold.

    At level `step` it works on the reward of steps instead of the score of draws. Sources: ARPO arXiv:2505.16282
    (`column="reward.format", weight=0.5`); FAPO (`column="flawed", weight=-1.0, only="success"`); SPEAR
    arXiv:2509.22601 (`column="tool_calls", weight=0.1, cap=1.0`, both falling to 0 by a `Schedule`); GDPO's
    conditioned reward arXiv:2601.05242 (`column="reward.correct", operation="require"`).

    Args:
        column: x: a component of the reward (`reward.<name>`), a flag or a count.
        weight: for `add`.
        operation: `add`, `multiply`, or `require`: s where x is at least `threshold`, `otherwise` elsewhere.
        only: of which draws: `all`, those that had `success`, or `failure`.
        cap: for `add`: at most so much is added; None: no limit.
        threshold: for `require`.
        otherwise: for `require`.
        level: `draw` (column `score`) or `step` (column `reward`).

    Raises:
        RecipeError: an option is not possible.

    Example:
        >>> from agentrl_core.reward import Fuse
        >>> Fuse(column="reward.format", weight=0.5).needs
        (('draw', 'score'), ('draw', 'reward.format'))
    """

    phase: ClassVar[str] = "reward"

    column: str
    weight: float = 1.0
    operation: Literal["add", "multiply", "require"] = "add"
    only: Literal["all", "success", "failure"] = "all"
    cap: float | None = None
    threshold: float = 1.0
    otherwise: float = 0.0
    level: Literal["draw", "step"] = "draw"

    def check_options(self) -> None:
        """Combinations as documented."""
        self.require(bool(self.column), "column", "name a column")
        self.require(self.cap is None or self.operation == "add", "cap", 'choose operation="add", or give None')

    @property
    def _target(self) -> str:
        return "score" if self.level == "draw" else "reward"

    @property
    def needs(self) -> tuple[Column, ...]:
        """The score, the column, and whose draws succeeded."""
        return needed(self.level, self._target, self.column, *(() if self.only == "all" else ("success",)))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again."""
        return needed(self.level, self._target)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws, or `reward` on steps."""
        rows = Rows(batch, self.level)
        score, column = rows.values(self._target), rows.values(self.column)
        if self.operation == "add":
            part = self.weight * column
            made = score + (part if self.cap is None else np.minimum(part, self.cap))
        elif self.operation == "multiply":
            made = score * column
        else:
            gate = np.where(column >= self.threshold, score, self.otherwise)
            made = np.where(np.isfinite(score) & np.isfinite(column), gate, np.nan)
        if self.only != "all":
            made = np.where(rows.flags("success") == (self.only == "success"), made, score)
        return rows.write(**{self._target: made})
