"""The score of a trajectory is what the environment paid for it, or what its success is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Outcome(BatchComponent):
    """score = reward of the trajectory, one f32 per draw; NaN (no reward) marks the draw as invalid.

    With `success` or `failure`, the score of a draw that succeeded, or that did not, is that number instead.
    W-REINFORCE (arXiv:2506.01347) is `success=0.1, failure=-1.0`; its PSR and NSR are `failure=0.0` and `success=0.0`.
    A draw with a NaN score neither votes in a statistic nor counts in a denominator.

    Args:
        success: score of a draw that succeeded; None: its reward.
        failure: score of a draw that did not; None: its reward.

    Example:
        >>> from agentrl_core.reward import Outcome
        >>> Outcome().needs, Outcome().makes
        ((('draw', 'reward'),), (('draw', 'score'),))
    """

    phase: ClassVar[str] = "reward"

    success: float | None = None
    failure: float | None = None

    @property
    def needs(self) -> tuple[Column, ...]:
        """The reward of each trajectory, and whether it succeeded."""
        plain = self.success is None and self.failure is None
        return needed("draw", "reward") if plain else needed("draw", "reward", "success")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score of each draw."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        score = rows.values("reward")
        if self.success is not None or self.failure is not None:
            succeeded = rows.flags("success")
            worth = np.where(
                succeeded,
                score if self.success is None else self.success,
                score if self.failure is None else self.failure,
            )
            score = np.where(np.isfinite(score), worth, score)
        return rows.write(score=score)
