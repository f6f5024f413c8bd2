"""The score of a trajectory is what the environment paid for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core.component import BatchComponent, Column

if TYPE_CHECKING:
    from agentrl_core.batch import Batch


@dataclass(frozen=True)
class Outcome(BatchComponent):
    """score = reward of the trajectory, one f32 per draw; NaN (no reward) marks the draw as invalid.

    A draw with a NaN score neither votes in a statistic nor counts in a denominator.

    Example:
        >>> from agentrl_core.reward import Outcome
        >>> Outcome().needs, Outcome().makes
        ((('draw', 'reward'),), (('draw', 'score'),))
    """

    phase: ClassVar[str] = "reward"

    @property
    def needs(self) -> tuple[Column, ...]:
        """The reward of each trajectory."""
        return (("draw", "reward"),)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score of each draw."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        return batch.with_columns("draw", score=batch.column("reward", "draw"))
