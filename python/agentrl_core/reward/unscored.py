"""Draws that shall not count anywhere: neither in statistics nor in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.operators import filters

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Unscored(BatchComponent):
    """score = NaN for draws that (or whose steps) are flagged: they do not vote, and are not trained.

    `weight.FlagFilter` is for draws that vote and are not trained. Source: a judge that failed in CM2, arXiv:2602.12268
    (`flags="judge_failed"`).

    Args:
        flags: comma-joined names of columns that are other than 0 where something is wrong, or of steps'
            `env.StepFlag`s in small letters.
        level: of these columns.

    Raises:
        RecipeError: `flags` is empty.

    Example:
        >>> from agentrl_core.reward import Unscored
        >>> Unscored(flags="judge_failed").needs
        (('draw', 'score'), ('step', 'judge_failed'))
    """

    phase: ClassVar[str] = "reward"

    flags: str = "truncated"
    level: Literal["draw", "step"] = "step"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(key_columns(self.flags)), "flags", "name columns")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The score and the flags."""
        return (*needed("draw", "score"), *needed(self.level, *key_columns(self.flags)))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
        flagged, draws = Rows(batch, self.level), Rows(batch, "draw")
        offsets = batch.offsets("step") if self.level == "step" else np.arange(len(draws) + 1)
        good = [filters.unflagged(flagged.flags(name), offsets) for name in key_columns(self.flags)]
        return draws.write(score=np.where(np.logical_and.reduce(good), draws.values("score"), np.nan))
