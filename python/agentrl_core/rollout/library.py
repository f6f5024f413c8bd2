"""What a run has solved so far, as programs read it: demonstrations to show, and prefixes to begin with."""

from __future__ import annotations

from typing import Protocol

from agentrl_core.exceptions import NotFoundError
from agentrl_core.rollout.prefix import Prefix


class Library(Protocol):
    """Solved trajectories of earlier iterations; what it holds does not change while an iteration is collected."""

    @property
    def folder(self) -> str:
        """Where the store of the run is; empty where there is none."""
        ...

    def solved(self, task_id: str | None = None) -> list[int]:
        """Ids of the trajectories that solved a task, or any; the oldest first."""
        ...

    def task_id(self, trajectory_id: int) -> str:
        """Return the task that a trajectory solved.

        Raises:
            NotFoundError: the library does not have it, as it has none without a store.
        """
        ...

    def actions(self, trajectory_id: int) -> list[str]:
        """Return the text of a trajectory's actions, turn by turn; raises as `task_id`."""
        ...

    def prefix(self, trajectory_id: int, *, turns: int | None = None, tokens: int = 0) -> Prefix:
        """Return the beginning of a trajectory, to begin with; see `Prefix.stored`; raises as `task_id`."""
        ...


class EmptyLibrary:
    """The library of a run that has kept nothing."""

    folder = ""

    def solved(self, task_id: str | None = None) -> list[int]:
        """See `Library`."""
        del task_id
        return []

    def task_id(self, trajectory_id: int) -> str:
        """See `Library`."""
        raise unsolved(trajectory_id)

    def actions(self, trajectory_id: int) -> list[str]:
        """See `Library`."""
        raise unsolved(trajectory_id)

    def prefix(self, trajectory_id: int, *, turns: int | None = None, tokens: int = 0) -> Prefix:
        """See `Library`."""
        del turns, tokens
        raise unsolved(trajectory_id)


def unsolved(trajectory_id: int) -> NotFoundError:
    """Return the error about a trajectory that a library does not have."""
    return NotFoundError(f"library: trajectory {trajectory_id} solved no task; take one of library.solved()")
