"""Interface between rollout programs and the collector that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agentrl_core.data.forest import Forest, Operation
from agentrl_core.engine.base import Request, Sampling, Segment
from agentrl_core.env.base import Content, Context, Task
from agentrl_core.env.episode import StepRecord
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentrl_core.engine.chat import Chat


class RunningEpisode(Protocol):
    """A running episode, with all its answers."""

    @property
    def title(self) -> str:
        """Of its environment, for messages."""
        ...

    @property
    def observation(self) -> Content:
        """First observation."""
        ...

    @property
    def state_key(self) -> bytes | str:
        """First state."""
        ...

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """Schemas of the tools in the prompt."""
        ...

    @property
    def contexts(self) -> Sequence[Context]:
        """Contexts of the first observation, and of other conversations."""
        ...

    @property
    def answers(self) -> Sequence[StepRecord]:
        """Answers to its actions, in order."""
        ...

    @property
    def moves(self) -> Sequence[Any]:
        """Answered actions."""
        ...

    async def reset(self, name: str) -> None:
        """Reset the episode; `name` is that of the answer in the journal.

        Raises:
            EpisodeError: the reset fails.
        """
        ...

    async def ready(self) -> None:
        """Replay its actions if needed, so that it can answer the next one.

        Raises:
            EpisodeError: the replay fails.
        """
        ...

    async def step(self, name: str, action: Any) -> StepRecord:
        """Take the next action (for several agents, one text per moving agent); `name` is that in the journal.

        Raises:
            EpisodeError: the step fails.
        """
        ...

    def copy(self, turns: int) -> RunningEpisode:
        """Return a copy of the episode after the first n actions."""
        ...

    def close(self) -> None:
        """Close the episode."""
        ...


class Runtime(Protocol):
    """Interface of the collector for branches."""

    @property
    def forest(self) -> Forest:
        """Forest of the rollouts."""
        ...

    @property
    def context_tokens(self) -> int:
        """Most tokens of a path."""
        ...

    @property
    def turn_limit(self) -> int | None:
        """Most turns of a path."""
        ...

    def chat(self, agent: str) -> Chat:
        """Return the chat of an agent's model."""
        ...

    def vocabulary_size(self, agent: str) -> int:
        """Return V, the width of the logits of an agent's model."""
        ...

    def policy(self, agent: str) -> int:
        """Return the number of an agent's policy."""
        ...

    def precision(self, agent: str) -> int | None:
        """Return the bits per weight of an agent's engine; None if unknown."""
        ...

    def check_images(self, agent: str, title: str) -> None:
        """Refuse images of an environment if the agent's engine does not support them.

        Raises:
            UnsupportedError: the engine does not support images.
        """
        ...

    def sampling(self, agent: str) -> Sampling:
        """Default sampling of segments."""
        ...

    def will_answer(self, name: str) -> bool:
        """Return whether the journal has the answer of that name, so that it needs no episode."""
        ...

    async def generate(self, name: str, agent: str, request: Request) -> Segment:
        """Generate an agent's response to a request; `name` is that of the segment in the journal."""
        ...

    def stop(self, name: str) -> None:
        """Stop the segment of that name if it is being generated, and keep its tokens."""
        ...

    def count_turn(self, flags: int, failed: str | None) -> None:
        """Count a turn by its flags, or a failed episode."""
        ...

    def began(self) -> None:
        """Count a started branch."""
        ...

    def ended(self) -> None:
        """Count an ended branch."""
        ...

    def grew(self, tokens: int, *, shared: bool) -> None:
        """Count new tokens of a path; `shared` ones were already stored."""
        ...

    def seed_of(self, *parts: object, began: int | None = None) -> int:
        """Return 63 random bits from the run's seed, the parts, and the iteration in which a group started."""
        ...


class BranchGroup(Protocol):
    """Interface of a group for its branches."""

    @property
    def key(self) -> tuple[int, ...]:
        """Unique in the run."""
        ...

    @property
    def name(self) -> str:
        """The key as a text."""
        ...

    @property
    def task(self) -> Task:
        """The task."""
        ...

    @property
    def fact_levels(self) -> Mapping[str, str]:
        """Level of each declared fact."""
        ...

    @property
    def number(self) -> int:
        """Number of the group in the forest."""
        ...

    def shares_prompt(self, prompt: NDArray[np.int32]) -> bool:
        """Return whether another branch of it started with these tokens."""
        ...

    @property
    def mode(self) -> str:
        """`train`, or `evaluate`."""
        ...

    def on_turn(self, branch: Any) -> None:
        """Record an answered turn."""
        ...

    def on_fork(
        self, parent: Any, child: Any, place: Any, score: float | None, *, operation: Operation = "fork"
    ) -> None:
        """Record a fork."""
        ...

    def log_decision(self, operation: Operation, branch: Any, place: Any, reason: str | None = None) -> None:
        """Keep a decision, so that the search can be replayed."""
        ...


class OneAtATime:
    """Guard that only one task awaits a branch, since two would make the order non-deterministic.

    Args:
        name: name of the branch, for the message.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._held = False

    def __enter__(self) -> None:
        """Start to await.

        Raises:
            InvalidInputError: another task awaits the branch.
        """
        if self._held:
            task = asyncio.current_task()
            raise InvalidInputError(
                f"branch {self._name} is awaited by a task other than {task and task.get_name()}; let one task drive a "
                "branch, and fork it for another"
            )
        self._held = True

    def __exit__(self, *_: object) -> None:
        """Stop to await."""
        self._held = False
