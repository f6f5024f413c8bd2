"""Factors by how long a step took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class DurationScaled(BatchComponent):
    """weight of a step *= clip(d / mean d of the batch, least, most), with d its duration in seconds.

    Steps whose duration is not known have factor 1. Source: Reinforcement Learning for Machine
    Learning Engineering Agents.

    Args:
        column: step column of durations.
        least: the smallest factor, at least 0.
        most: the largest, at least `least`.

    Raises:
        RecipeError: an option is out of range, or no duration is known.

    Example:
        >>> from agentrl_core.weight import DurationScaled
        >>> DurationScaled().needs
        (('step', 'duration'),)
    """

    phase: ClassVar[str] = "weight"

    column: str = "duration"
    least: float = 0.1
    most: float = 10.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.least >= 0.0, "least", "give a number of at least 0")
        self.require(self.most >= self.least, "most", "give a number of at least least")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The durations."""
        return (("step", self.column),)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight of each step."""
        return (("step", "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "step")
        known = rows.known(self.column)
        duration = np.where(known, rows.values(self.column), 0.0)
        relative = group.mean_one(duration, rows.keys("batch"), valid=known)
        return rows.scale(np.where(known, np.clip(relative, self.least, self.most), 1.0))
