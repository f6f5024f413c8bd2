"""What groups ask of who runs them, beside what their branches ask."""

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
    """What drives a group and its branches: a `Rollout`."""

    async def branch(self, branch: Any) -> None:
        """Drive one trajectory."""
        ...

    async def group(self, group: Any) -> None:
        """Make the trajectories of one task."""
        ...

    def final_group_size(self, group_size: int) -> int:
        """How many members a group has in the end."""
        ...


class GroupRuntime(Runtime, Protocol):
    """Who runs programs, as a group sees it."""

    @property
    def program(self) -> GroupProgram:
        """The program that the recipe names."""
        ...

    def agent(self, name: str) -> int:
        """The number of an agent in the tables."""
        ...

    def vocabulary_size(self, agent: str) -> int:
        """V, the width of the logits of an agent's model."""
        ...

    def episode(self, task: Task, environment: str | None, seed: int) -> RunningEpisode:
        """An episode of a task, which is reset when it is first asked."""
        ...

    def uses_world_model(self, task: Task, environment: str | None) -> bool:
        """Whether an episode of a task is a dream of a world model."""
        ...

    def statistics(self, task_id: str) -> Mapping[str, Any]:
        """What the run knows of a task."""
        ...

    async def record(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """What the journal holds under a name; else what `make` gives, journalled first."""
        ...

    async def derive(self, group: Any) -> None:
        """Run the program of a group that another group made, to its end."""
        ...

    def release_slots(self, name: str, count: int) -> None:
        """Give back so many of the places of a group, which is known by its name."""
        ...

    def number(self) -> int:
        """A number for one more group of the forest."""
        ...

    def scores(self, group: Any, column: str) -> dict[int, float]:
        """What phase reward makes of a group as it stands: a number for the handle of each ended branch."""
        ...

    async def run_groups(self, groups: Sequence[Any], program: Callable[[Any], Awaitable[Any]]) -> None:
        """Run a program on each group, side by side as far as there is room; one that raises fails alone."""
        ...

    @property
    def library(self) -> Library:
        """What the run has solved so far."""
        ...

    @property
    def states(self) -> Mapping[str, Any]:
        """What components remember, by their place in the recipe, as of the iteration's begin."""
        ...

    async def query(self, column: str, paths: Sequence[NDArray[np.int32]]) -> list[float]:
        """What a model says of token paths, asked together with those of other groups."""
        ...
