"""The environment protocol: tasks in, episodes out, one outcome for each action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from agentrl_core.data.codes import StepFlag

Split = Literal["train", "held_out"]

# Bits of `Outcome.flags`, as plain numbers.
TOOL_ERROR = int(StepFlag.TOOL_ERROR)
FORMAT_ERROR = int(StepFlag.FORMAT_ERROR)
TOOL_RESULT = int(StepFlag.TOOL_RESULT)


@dataclass(frozen=True)
class Task:
    """One problem to solve.

    `task_id` names it for the whole run and in every process; `question` is the text of the first observation; `domain`
    is the kind of problem (statistics are kept by it); `payload` is the environment's own and nobody else reads it.
    """

    task_id: str
    question: str
    domain: str
    payload: object


@dataclass(frozen=True)
class Outcome:
    """What one action gave.

    `observation` is the text of the next observation, None where the episode is over. `reward` is what this action was
    paid, None where nothing was paid yet. `terminated`: the environment says it is over; `truncated`: a limit says so.
    `flags`: `StepFlag`s, and bits of your own. `success` is the unshaped verdict on the episode, None while it goes on.
    `info` holds facts for the record, as JSON.
    """

    observation: str | None
    reward: float | None
    terminated: bool
    truncated: bool
    flags: int
    success: bool | None
    info: Mapping[str, object] | None


class Episode(Protocol):
    """One run of one task. Deterministic in (task, seed, actions), so that a branch can replay its actions."""

    @property
    def observation(self) -> str:
        """The first observation."""
        ...

    def step(self, action: str) -> Outcome:
        """Give the text of an action, without its stop token, to the environment."""
        ...

    def state_key(self) -> bytes:
        """What the next action is chosen from, as bytes: equal bytes are the same state (anchor of GiGPO)."""
        ...


class Environment(Protocol):
    """A source of tasks and of episodes."""

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> list[Task]:
        """Tasks `start` to `start + count` of a split; the same call always gives the same tasks."""
        ...

    def reset(self, task: Task, seed: int) -> Episode:
        """A fresh episode; the same (task, seed) gives equal episodes."""
        ...


class ToolReply(NamedTuple):
    """The text a tool answers with, and whether it says that the call failed."""

    text: str
    error: bool


class Tool(Protocol):
    """Something a model can call with text. It never raises on account of that text."""

    @property
    def name(self) -> str:
        """How a call names the tool where there is more than one."""
        ...

    def __call__(self, text: str) -> ToolReply:
        """Do what `text` asks for."""
        ...
