"""Trackers, which keep a number for each task, and the candidates that they estimate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import Component

if TYPE_CHECKING:
    from agentrl_core.component.state import State
    from agentrl_core.select.pool import Pool
    from agentrl_core.select.task_outcomes import TaskOutcomes


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidates of a selection: tasks of the pool, by row, with their positions in trackers.

    Attributes:
        pool: the pool of the tasks.
        rows: their rows in the pool.
        places: their positions in the arrays of trackers; -1: not tried yet.
        iteration: number of the iteration.
    """

    pool: Pool
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    iteration: int

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.rows)

    def known(self, array: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the candidates that an array covers: their positions among these, and their rows in the array."""
        # As an unsigned number, -1 is the largest, so untried tasks are outside of the array.
        here = np.flatnonzero(self.places.view(np.uint64) < len(array))
        return here, self.places[here]

    def read(self, array: NDArray[Any], unknown: float) -> NDArray[np.float64]:
        """Return the array's value of each task, or `unknown` if it has none."""
        values = np.full(len(self), unknown, np.float64)
        here, there = self.known(array)
        values[here] = array[there]
        return values

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of the pool for these tasks."""
        return self.pool.column(name)[self.rows]

    def some(self, keep: NDArray[Any] | slice) -> Candidates:
        """Return a subset, by a mask, positions or a slice."""
        return Candidates(self.pool, self.rows[keep], self.places[keep], self.iteration)


def grown(array: NDArray[Any], known: int, fill: float) -> NDArray[Any]:
    """Return a copy of an array with one row per known task; new rows are `fill`."""
    longer = np.full((known, *array.shape[1:]), fill, array.dtype)
    longer[: len(array)] = array
    return longer


@dataclass(frozen=True)
class Tracker(Component, ABC):
    """Base class of trackers, which keep a number for each task, in arrays with one row per tried task.

    A tracker is a fold: `next` returns a new state from this state and the outcomes of an iteration; it does not modify
    `state`.
    """

    column: ClassVar[str] = "estimate"
    """Name of the tracked number; draws have it as column `task_<column>`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tracker's columns."""
        return (self.column,)

    @abstractmethod
    def initial_state(self) -> State:
        """Return the state without any task."""

    @abstractmethod
    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Return the state after an iteration."""

    @abstractmethod
    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """Return the tracked number of each candidate."""

    def posterior_draw(self, state: State, candidates: Candidates, key: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Sample the number of each candidate from its posterior. Without uncertainty, return the number itself."""
        return self.estimate(state, candidates)

    def columns(self, state: State, candidates: Candidates) -> dict[str, NDArray[np.float32]]:
        """Return the tracker's columns for some tasks, which their draws get as `task_<name>`."""
        return {self.column: self.estimate(state, candidates).astype(np.float32)}
