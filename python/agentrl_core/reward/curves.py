"""A number through a curve: the nearer the better, and less pull at the top."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Closeness(BatchComponent):
    """score = exp(-1/2 sum (x / width)^2) of distances x: 1 where all are 0, near 0 beyond a few widths.

    A draw with an unknown distance has no score. Sources: OmniQuality-R arXiv:2510.10609 (`column="error",
    width=0.8`: predicted less true); SSL arXiv:2601.22491 (`column="dx,dy", width=1.0`, in units of the target's size).

    Args:
        column: comma-joined draw columns of distances.
        width: above 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import Closeness
        >>> Closeness(column="dx,dy").needs
        (('draw', 'dx'), ('draw', 'dy'))
    """

    phase: ClassVar[str] = "reward"

    column: str = "error"
    width: float = 1.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(key_columns(self.column)), "column", "name columns")
        self.require(self.width > 0.0, "width", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The distances."""
        return needed("draw", *key_columns(self.column))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score of each draw."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        far = np.sum([(rows.values(name) / self.width) ** 2 for name in key_columns(self.column)], axis=0)
        return rows.write(score=np.where(np.isfinite(far), np.exp(-0.5 * far), np.nan))


@dataclass(frozen=True)
class SoftTop(BatchComponent):
    """score = t + rise ln(r - t + 1) of a score r from t on, and t - (e^(fall (t - r)) - 1) / (e^fall - 1) below.

    The curve passes through the threshold t; above it scores hardly differ, so that a given solution does not outshine
    those that were sampled; below it each step down costs more. Source: TempSamp-R1, arXiv:2509.18056.

    Args:
        threshold: t.
        rise: at least 0.
        fall: above 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import SoftTop
        >>> SoftTop().makes
        (('draw', 'score'),)
    """

    phase: ClassVar[str] = "reward"

    threshold: float = 0.8
    rise: float = 0.01
    fall: float = 1.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.rise >= 0.0, "rise", "give a number of at least 0")
        self.require(self.fall > 0.0, "fall", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The score of each draw."""
        return (("draw", "score"),)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        above = rows.values("score") - self.threshold
        top = self.rise * np.log1p(np.maximum(above, 0.0))
        bottom = np.expm1(self.fall * np.maximum(-above, 0.0)) / np.expm1(self.fall)
        return rows.write(score=np.where(np.isfinite(above), self.threshold + top - bottom, np.nan))
