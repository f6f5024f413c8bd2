"""Base class of components that select tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.state import IterationRecord, State, Stateful
from agentrl_core.select.pool import Pool
from agentrl_core.select.selection import Selection, SelectionRequest


@dataclass(frozen=True)
class Selector(Stateful, ABC):
    """Base class of components that choose tasks. One with state overrides `initial_state` and `next`."""

    phase: ClassVar[str] = "select"

    @abstractmethod
    def choose(self, pool: Pool, state: State, wanted: SelectionRequest, key: int) -> Selection:
        """Choose the groups of one round.

        Args:
            pool: the tasks.
            state: its state at the start of the iteration.
            wanted: number of groups, and the rows that earlier rounds took.
            key: the only randomness, the same in every round of an iteration: `structural_seed(seed, iteration)`. Use
                `structural_seed(key, wanted.round)` for numbers that differ between rounds.

        Returns:
            Up to `wanted.groups` groups to train on (fewer if the pool has no more), and any number of surveys.
        """

    def columns(self, pool: Pool, state: State, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:  # noqa: ARG002 - as above
        """Return columns of tasks: one number per row, by name. Draws have them as `task_<name>`."""
        return {}

    def initial_state(self) -> State:
        """Return the empty state."""
        return {}

    def next(self, state: State, closed: IterationRecord) -> State:  # noqa: ARG002 - it learns nothing
        """Return the state unchanged."""
        return state
