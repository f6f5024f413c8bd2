"""Interface between rollout programs and the collector that runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agentrl_core.data.forest import Forest
from agentrl_core.engine.base import Request, Sampling, Segment
from agentrl_core.env.base import Content, Context, Task
from agentrl_core.env.step_record import StepRecord
from agentrl_core.rollout.progress import Progress
from agentrl_core.rollout.solved_trajectories import Library

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentrl_core.engine.chat import Chat


class RunningEpisode(Protocol):
    """Interface of a running episode, with all answers of its environment so far."""

    @property
    def title(self) -> str:
        """Title of the environment, for messages."""
        ...

    @property
    def observation(self) -> Content:
        """First observation of the episode."""
        ...

    @property
    def state_key(self) -> bytes | str:
        """Key of the first state of the episode."""
        ...

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """Schemas of the tools in the prompt; None: no tools."""
        ...

    @property
    def contexts(self) -> Sequence[Context]:
        """One Context for each conversation that is open after the reset; the first one belongs to `observation`."""
        ...

    @property
    def answers(self) -> Sequence[StepRecord]:
        """The environment's answers to the actions so far, in order."""
        ...

    @property
    def handle(self) -> Any:
        """The episode object of the environment; None: it has to be rebuilt first, by `ready`."""
        ...

    @property
    def moves(self) -> Sequence[Any]:
        """Actions that the environment has answered, in order."""
        ...

    async def reset(self, name: str) -> None:
        """Reset the episode; `name` is the rollout log's key of the answer.

        Raises:
            EpisodeError: the reset fails.
        """
        ...

    async def ready(self, name: str) -> None:
        """Replay the actions so far if needed, so that the episode can answer the next one.

        Args:
            name: the rollout log's key of the next answer; if it has that answer, nothing is replayed.

        Raises:
            EpisodeError: the replay fails.
        """
        ...

    async def step(self, name: str, action: Any) -> StepRecord:
        """Take the next action (for several agents, one text per moving agent); `name` is the rollout log's key.

        Raises:
            EpisodeError: the step fails.
        """
        ...

    def copy(self, turns: int) -> RunningEpisode:
        """Return a copy of the episode after the first `turns` actions."""
        ...

    def close(self) -> None:
        """Close the episode."""
        ...


class Runtime(Protocol):
    """Interface of the collector for groups and their branches; `collect` imports this package, not the reverse."""

    @property
    def forest(self) -> Forest:
        """Forest in which the rollouts are stored."""
        ...

    @property
    def context_tokens(self) -> int:
        """Largest number of tokens of a path."""
        ...

    @property
    def turn_limit(self) -> int | None:
        """Largest number of turns of a path; None: no limit."""
        ...

    def chat(self, agent: str) -> Chat:
        """Return the chat of an agent's model."""
        ...

    def vocabulary_size(self, agent: str) -> int:
        """Return V, the width of the logits of an agent's model."""
        ...

    def policy(self, agent: str) -> int:
        """Return the number of an agent's policy: that of its own engine; without one, 0, that of the first engine."""
        ...

    def precision(self, agent: str) -> int | None:
        """Return the bits per weight of an agent's engine; None if unknown."""
        ...

    def check_images(self, agent: str, title: str) -> None:
        """Raise an error if the agent's engine does not support the images of an environment.

        Raises:
            UnsupportedError: the engine does not support images.
        """
        ...

    @property
    def sampling(self) -> Sampling:
        """Default sampling of segments."""
        ...

    async def generate(self, name: str, agent: str, request: Request) -> Segment:
        """Generate an agent's response to a request; `name` is the rollout log's key of the segment."""
        ...

    def stop(self, name: str) -> None:
        """Stop the generation of the segment with a name, if it is running, and keep its tokens."""
        ...

    @property
    def progress(self) -> Progress:
        """Counters of the running rollouts."""
        ...

    def count_failed(self, reason: str) -> None:
        """Count a failed episode."""
        ...

    def seed_of(self, *parts: object, began: int | None = None) -> int:
        """Return 63 random bits from the run's seed, the parts, and the iteration: in training `began`, if given."""
        ...

    @property
    def program(self) -> Any:
        """The rollout program of the recipe."""
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
        """Return the recorded value of a name; if there is none, call `make`, and record its result."""
        ...

    async def derive(self, group: Any) -> None:
        """Run the program of a derived group to its end."""
        ...

    def release_slots(self, name: str, count: int) -> None:
        """Release `count` slots of the group with a name, so that waiting groups can start."""
        ...

    def number(self) -> int:
        """Return the number of a new group of the forest."""
        ...

    def scores(self, group: Any, column: str) -> dict[int, float]:
        """Score a group in its current state: a number for the handle of each ended branch."""
        ...

    async def run_groups(self, groups: Sequence[Any], program: Callable[[Any], Awaitable[Any]]) -> None:
        """Run a program on each group, concurrently within the limit; most errors fail only their group."""
        ...

    @property
    def library(self) -> Library:
        """Solved trajectories of the run, as of the start of the iteration."""
        ...

    @property
    def states(self) -> Mapping[str, Any]:
        """States of components at the start of the iteration, by place in the recipe."""
        ...

    async def query(self, column: str, paths: Sequence[NDArray[np.int32]]) -> list[float]:
        """Query a model about token paths, batched with other groups."""
        ...
