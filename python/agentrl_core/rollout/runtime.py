"""What programs ask of who runs them: the collector answers, and a program never sees how."""

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
    """An episode, and everything that it answered so far."""

    @property
    def title(self) -> str:
        """Of its environment, for messages."""
        ...

    @property
    def observation(self) -> Content:
        """What it began with."""
        ...

    @property
    def state_key(self) -> bytes | str:
        """The state that it began in."""
        ...

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """Schemas of the tools that the prompt shows."""
        ...

    @property
    def contexts(self) -> Sequence[Context]:
        """Where what it began with stands, and what other lanes ask beside it."""
        ...

    @property
    def answers(self) -> Sequence[StepRecord]:
        """What it answered to its actions, in order."""
        ...

    @property
    def moves(self) -> Sequence[Any]:
        """The actions that it answered."""
        ...

    async def reset(self, name: str) -> None:
        """Find out what it begins with; `name` is that of the answer in the journal.

        Raises:
            EpisodeError: it does not begin.
        """
        ...

    async def ready(self) -> None:
        """Be where its actions have led, so that it can answer the next one.

        Raises:
            EpisodeError: it cannot be.
        """
        ...

    async def step(self, name: str, action: Any) -> StepRecord:
        """Give it the next action (of several agents, a text for each that moves); `name` is that in the journal.

        Raises:
            EpisodeError: it does not answer.
        """
        ...

    def copy(self, turns: int) -> RunningEpisode:
        """An episode of its own that is where this one was behind so many actions."""
        ...

    def close(self) -> None:
        """It is not needed any more."""
        ...


class Runtime(Protocol):
    """Who runs programs, as a branch sees it."""

    @property
    def forest(self) -> Forest:
        """Where everything is kept."""
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
        """How text becomes tokens for the model of an agent."""
        ...

    def policy(self, agent: str) -> int:
        """The number of the policy that speaks for an agent."""
        ...

    def precision(self, agent: str) -> int | None:
        """How many bits the weights have in the engine that speaks for an agent; None: it does not say."""
        ...

    def check_images(self, agent: str, title: str) -> None:
        """Refuse images of an environment for an agent whose engine takes none.

        Raises:
            UnsupportedError: as said.
        """
        ...

    def sampling(self, agent: str) -> Sampling:
        """How segments are sampled where a program does not say."""
        ...

    def will_answer(self, name: str) -> bool:
        """Whether the journal holds the answer of that name, so that no episode is needed for it."""
        ...

    async def generate(self, name: str, agent: str, request: Request) -> Segment:
        """What the model of an agent says to a request; `name` is that of the segment in the journal."""
        ...

    def stop(self, name: str) -> None:
        """End the segment of that name, if it is being generated, with what there is."""
        ...

    def count_turn(self, flags: int, failed: str | None) -> None:
        """A turn was answered with these flags, or its episode broke down."""
        ...

    def began(self) -> None:
        """There is one more branch."""
        ...

    def ended(self) -> None:
        """A branch is over."""
        ...

    def grew(self, tokens: int, *, shared: bool) -> None:
        """A path got so many tokens; `shared`: others had put them there."""
        ...

    def seed_of(self, *parts: object, began: int | None = None) -> int:
        """63 random bits that depend on the run's seed, on the parts, and on the iteration in which a group began."""
        ...


class BranchGroup(Protocol):
    """A group, as its branches see it."""

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
        """What is to be solved."""
        ...

    @property
    def fact_levels(self) -> Mapping[str, str]:
        """The level of each fact that is declared."""
        ...

    @property
    def number(self) -> int:
        """Of the group in the forest."""
        ...

    def shares_prompt(self, prompt: NDArray[np.int32]) -> bool:
        """Whether another branch of it began with these tokens."""
        ...

    @property
    def mode(self) -> str:
        """`train`, or `evaluate`."""
        ...

    def on_turn(self, branch: Any) -> None:
        """A branch was answered."""
        ...

    def on_fork(
        self, parent: Any, child: Any, place: Any, score: float | None, *, operation: Operation = "fork"
    ) -> None:
        """A branch made another one."""
        ...

    def log_decision(self, operation: Operation, branch: Any, place: Any, reason: str | None = None) -> None:
        """Keep a decision, so that the search can be replayed."""
        ...


class OneAtATime:
    """Held while a task awaits a branch: a second one would make the order of things a matter of chance.

    Args:
        name: of the branch, for the message.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._held = False

    def __enter__(self) -> None:
        """Begin to await.

        Raises:
            InvalidInputError: another task does.
        """
        if self._held:
            task = asyncio.current_task()
            raise InvalidInputError(
                f"branch {self._name} is awaited by another task than {task and task.get_name()}; let one task drive a "
                "branch, and fork it for another"
            )
        self._held = True

    def __exit__(self, *_: object) -> None:
        """It is not awaited any more."""
        self._held = False
