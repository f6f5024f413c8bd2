"""What the components of phase reward write, and what names a draw where chance decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Column, draw, step

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

SCORES: dict[str, Column] = {"draw": draw("score"), "step": step("step_score")}
"""What is made of the reward of draws, and of steps. The reward itself is a fact of the environment, and stays."""

IDENTITY: tuple[Column, ...] = (draw("iteration"), draw("trajectory_id"))
"""The columns behind `identities`."""


def identities(batch: Batch) -> NDArray[np.int64]:
    """A number for each draw that is its own in the whole run, wherever the draw stands in the batch."""
    iterations, trajectories = (batch.column(name, "draw").astype(np.int64) for _, name in IDENTITY)
    return (iterations << 32) ^ trajectories
