"""What a run has solved so far, as programs read it: demonstrations to show, and prefixes to begin with."""

from __future__ import annotations

from typing import Protocol

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
        """The task that a trajectory solved."""
        ...

    def actions(self, trajectory_id: int) -> list[str]:
        """What a trajectory said, turn by turn."""
        ...

    def prefix(self, trajectory_id: int, *, turns: int | None = None, tokens: int = 0) -> Prefix:
        """The beginning of a trajectory, to begin with; see `Prefix.stored`."""
        ...


class Nothing:
    """The library of a run that has kept nothing."""

    folder = ""

    def solved(self, task_id: str | None = None) -> list[int]:
        """See `Library`."""
        del task_id
        return []

    def task_id(self, trajectory_id: int) -> str:
        """See `Library`."""
        raise KeyError(trajectory_id)

    def actions(self, trajectory_id: int) -> list[str]:
        """See `Library`."""
        raise KeyError(trajectory_id)

    def prefix(self, trajectory_id: int, *, turns: int | None = None, tokens: int = 0) -> Prefix:
        """See `Library`."""
        del turns, tokens
        raise KeyError(trajectory_id)
