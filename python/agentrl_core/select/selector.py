"""Which tasks an iteration rolls out."""

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
    """Base of the components that choose tasks. One that remembers overrides `initial_state` and `next`."""

    phase: ClassVar[str] = "select"

    @abstractmethod
    def choose(self, pool: Pool, state: State, wanted: SelectionRequest, key: int) -> Selection:
        """The groups of one round.

        Args:
            pool: the tasks.
            state: what it remembers, as of the iteration's begin.
            wanted: how many groups, and what the rounds before took.
            key: the only randomness, the same in every round of an iteration: `structural_seed(seed, iteration)`. What
                is to be drawn afresh in each round takes `structural_seed(key, wanted.round)`.

        Returns:
            Up to `wanted.groups` groups to train on, and as many surveys as it likes; fewer where the pool has no more.
        """

    def columns(self, pool: Pool, state: State, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:  # noqa: ARG002 - as above
        """What it knows of tasks: numbers by name, of each row; readable on draws as `task_<name>`."""
        return {}

    def initial_state(self) -> State:
        """Nothing."""
        return {}

    def next(self, state: State, closed: IterationRecord) -> State:  # noqa: ARG002 - it learns nothing
        """What it knew."""
        return state
