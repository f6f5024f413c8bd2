"""Solved trajectories of a run for programs: demonstrations and prefixes."""

from __future__ import annotations

from typing import Protocol

from agentrl_core.exceptions import NotFoundError
from agentrl_core.rollout.prefix import Prefix


class Library(Protocol):
    """Interface of the solved trajectories of earlier iterations; they do not change during an iteration."""

    @property
    def folder(self) -> str:
        """Path of the run's store folder; empty without a store."""
        ...

    def solved(self, task_id: str | None = None) -> list[int]:
        """Return ids of trajectories that solved a task, or any task; oldest first."""
        ...

    def task_id(self, trajectory_id: int) -> str:
        """Return the task that a trajectory solved.

        Raises:
            NotFoundError: the library does not have it, or there is no store.
        """
        ...

    def actions(self, trajectory_id: int) -> list[str]:
        """Return the text of a trajectory's actions, turn by turn; raises like `task_id`."""
        ...

    def prefix(self, trajectory_id: int, *, turns: int | None = None, tokens: int = 0) -> Prefix:
        """Return a prefix of a trajectory to start from, as `Prefix.stored` does; raises like `task_id`."""
        ...


class EmptyLibrary:
    """The library without trajectories: of a run without a store, or of an evaluation."""

    folder = ""

    def solved(self, task_id: str | None = None) -> list[int]:
        """Return no trajectories."""
        del task_id
        return []

    def task_id(self, trajectory_id: int) -> str:
        """Raise NotFoundError, since there are no trajectories."""
        raise unsolved(trajectory_id)

    def actions(self, trajectory_id: int) -> list[str]:
        """Raise NotFoundError, since there are no trajectories."""
        raise unsolved(trajectory_id)

    def prefix(self, trajectory_id: int, *, turns: int | None = None, tokens: int = 0) -> Prefix:
        """Raise NotFoundError, since there are no trajectories."""
        del turns, tokens
        raise unsolved(trajectory_id)


def unsolved(trajectory_id: int) -> NotFoundError:
    """Return the error about a trajectory that a library does not have."""
    return NotFoundError(f"library: trajectory {trajectory_id} solved no task; take one of library.solved()")
