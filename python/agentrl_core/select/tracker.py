"""What is remembered of each task: trackers, and the tasks they are asked about."""

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
    """Tasks that may be chosen.

    Attributes:
        pool: the pool they are of.
        rows: their rows in it.
        places: where trackers keep what they know of each; -1: nobody tried it yet.
        iteration: for which they are asked.
    """

    pool: Pool
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    iteration: int

    def __len__(self) -> int:
        """How many tasks."""
        return len(self.rows)

    def known(self, array: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tasks that an array of a tracker has something for: their positions here, and their places there."""
        # A place of -1 is the largest there is where there is no sign.
        here = np.flatnonzero(self.places.view(np.uint64) < len(array))
        return here, self.places[here]

    def read(self, array: NDArray[Any], unknown: float) -> NDArray[np.float64]:
        """What an array of a tracker has for each task; `unknown` where it has nothing."""
        found = np.full(len(self), unknown, np.float64)
        here, there = self.known(array)
        found[here] = array[there]
        return found

    def column(self, name: str) -> NDArray[Any]:
        """A column of the pool, of these tasks."""
        return self.pool.column(name)[self.rows]

    def some(self, keep: NDArray[Any] | slice) -> Candidates:
        """Some of them, by a mask, by positions or by a slice."""
        return Candidates(self.pool, self.rows[keep], self.places[keep], self.iteration)


def grown(array: NDArray[Any], known: int, fill: float) -> NDArray[Any]:
    """A copy of an array with a row for each task that is known; new rows are `fill`."""
    longer = np.full((known, *array.shape[1:]), fill, array.dtype)
    longer[: len(array)] = array
    return longer


@dataclass(frozen=True)
class Tracker(Component, ABC):
    """Base of what remembers a number of each task, in arrays that have a row for each task that was tried.

    A tracker is a fold: `next` makes the state that follows from this one and the outcomes of an iteration, and leaves
    `state` as it is.
    """

    column: ClassVar[str] = "estimate"
    """What its number is called: draws read it as `task_<column>`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its `columns`."""
        return (self.column,)

    @abstractmethod
    def initial_state(self) -> State:
        """Nothing known of any task."""

    @abstractmethod
    def next(self, state: State, visits: TaskOutcomes) -> State:
        """What is known after an iteration."""

    @abstractmethod
    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """Its number for each candidate."""

    def posterior_draw(self, state: State, candidates: Candidates, key: int) -> NDArray[np.float64]:  # noqa: ARG002
        """The number as it may be: a draw for each candidate. Without uncertainty, the number itself."""
        return self.estimate(state, candidates)

    def columns(self, state: State, candidates: Candidates) -> dict[str, NDArray[np.float32]]:
        """What draws can read of their tasks."""
        return {self.column: self.estimate(state, candidates).astype(np.float32)}
