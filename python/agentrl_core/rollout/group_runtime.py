"""Interface between groups and the collector that runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agentrl_core.env.base import Task
from agentrl_core.rollout.library import Library
from agentrl_core.rollout.runtime import RunningEpisode, Runtime

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class GroupProgram(Protocol):
    """Interface of the program of a group: a `Rollout`."""

    async def branch(self, branch: Any) -> None:
        """Drive one trajectory."""
        ...

    async def group(self, group: Any) -> None:
        """Create the trajectories of one task."""
        ...

    def final_group_size(self, group_size: int) -> int:
        """Final number of members of a group."""
        ...


class GroupRuntime(Runtime, Protocol):
    """Interface of the collector for groups."""

    @property
    def program(self) -> GroupProgram:
        """The program that the recipe names."""
        ...

    def agent(self, name: str) -> int:
        """Return the number of an agent in the tables."""
        ...

    def episode(self, task: Task, environment: str | None, seed: int) -> RunningEpisode:
        """Create an episode of a task, which is reset on first use."""
        ...

    def uses_world_model(self, task: Task, environment: str | None) -> bool:
        """Return whether a world model simulates the episode of a task."""
        ...

    def statistics(self, task_id: str) -> Mapping[str, Any]:
        """Return the run's statistics of a task."""
        ...

    async def record(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the journalled value of a name, or that of `make`, which is journalled first."""
        ...

    async def derive(self, group: Any) -> None:
        """Run the program of a derived group to its end."""
        ...

    def release_slots(self, name: str, count: int) -> None:
        """Release slots of a group, by its name."""
        ...

    def number(self) -> int:
        """Return the number of a new group of the forest."""
        ...

    def scores(self, group: Any, column: str) -> dict[int, float]:
        """Score a group in its current state: a number for the handle of each ended branch."""
        ...

    async def run_groups(self, groups: Sequence[Any], program: Callable[[Any], Awaitable[Any]]) -> None:
        """Run a program on each group, concurrently within the limit; an error fails only its group."""
        ...

    @property
    def library(self) -> Library:
        """Solved trajectories of the run."""
        ...

    @property
    def states(self) -> Mapping[str, Any]:
        """States of components at the start of the iteration, by place in the recipe."""
        ...

    async def query(self, column: str, paths: Sequence[NDArray[np.int32]]) -> list[float]:
        """Query a model about token paths, batched with other groups."""
        ...
