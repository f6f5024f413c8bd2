"""Columns that phase reward writes, and identities of draws for random choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Column, draw, step

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

SCORES: dict[str, Column] = {"draw": draw("score"), "step": step("step_score")}
"""Score columns of draws and steps. The environment's reward itself is a separate column and never changes."""

IDENTITY: tuple[Column, ...] = (draw("iteration"), draw("trajectory_id"))
"""The columns that `identities` reads."""


def identities(batch: Batch) -> NDArray[np.int64]:
    """Number each draw by its iteration and trajectory; draws of one trajectory in an iteration share the number."""
    iterations, trajectories = (batch.column(name, "draw").astype(np.int64) for _, name in IDENTITY)
    return (iterations << 32) ^ trajectories
