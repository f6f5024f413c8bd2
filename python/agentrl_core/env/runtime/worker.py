"""Workers of episodes: the common interface, and the in-loop worker."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl_core.env.base import Environment, StepResult, Task
from agentrl_core.env.step_record import JointStep
from agentrl_core.exceptions import DataError, InvalidInputError


class WorkerDiedError(Exception):
    """A worker process or actor died; `culprit` is true if it was running this call."""

    def __init__(self, message: str, *, culprit: bool) -> None:
        super().__init__(message)
        self.culprit = culprit


class OverdueError(Exception):
    """A call exceeded its time limit; `abandoned` is true if its thread cannot be stopped and continues."""

    def __init__(self, message: str, *, abandoned: bool = False) -> None:
        super().__init__(message)
        self.abandoned = abandoned


@dataclass(frozen=True)
class RawStart:
    """Unchecked start of an episode."""

    observation: Any
    state_key: Any
    tools: Any
    contexts: Any


@dataclass(frozen=True)
class RawStep:
    """Unchecked result of a step, the state after it, and a snapshot if the episode supports it."""

    outcome: Any
    state_key: Any
    snapshot: Any


@contextlib.contextmanager
def of_environment() -> Iterator[None]:
    """Convert an environment's `InvalidInputError` inside the block to a `DataError`: the caller made no mistake."""
    try:
        yield
    except DataError:
        raise
    except InvalidInputError as error:
        raise DataError(str(error)) from error


def begin(environment: Environment, task: Task, seed: int) -> tuple[Any, RawStart]:
    """Start a new episode; return it and its unchecked observation, state, tools and contexts."""
    with of_environment():
        return _begun(environment, environment.reset(task, seed))


def _begun(environment: Environment, episode: Any) -> tuple[Any, RawStart]:
    joint = hasattr(episode, "observations")
    for name in ("observations", "turn_of", "step", "state_key") if joint else ("observation", "step", "state_key"):
        if not hasattr(episode, name):
            wanted = (
                "a MultiEpisode: an object with observations, turn_of(), step(actions)"
                if joint
                else "an Episode: an object with observation, step(action)"
            )
            raise DataError(
                f"environment {type(environment).__name__}: reset gave {episode!r:.60} (a {type(episode).__name__}), "
                f"which has no {name!r}; return {wanted} and state_key()"
            )
    observation = JointStep(dict(episode.observations), tuple(episode.turn_of())) if joint else episode.observation
    tools, contexts = getattr(episode, "tools", None), getattr(episode, "contexts", ())
    return episode, RawStart(observation, episode.state_key(), tools, contexts)


def restore(environment: Any, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None) -> Any:
    """Restore an episode after some actions, by the environment's `restore`; return it and its state."""
    with of_environment():
        episode = environment.restore(task, seed, actions, snapshot)
        return episode, episode.state_key()


def act(episode: Any, action: Any) -> RawStep:
    """Execute one step of an episode; return the result, the state after it, and a snapshot if supported."""
    with of_environment():
        return _replied(episode, episode.step(action))


def _replied(episode: Any, outcome: Any) -> RawStep:
    if hasattr(episode, "observations"):
        outcome = JointStep(dict(outcome), tuple(episode.turn_of())) if isinstance(outcome, Mapping) else outcome
        continues = isinstance(outcome, JointStep) and bool(outcome.turn_of)
    else:
        continues = isinstance(outcome, StepResult) and not (outcome.terminated is True or outcome.truncated is True)
    snapshot = getattr(episode, "snapshot", None)
    return RawStep(
        outcome, episode.state_key() if continues else None, snapshot() if continues and snapshot is not None else None
    )


def end(episode: Any) -> None:
    """Close an episode if it has `close`. Errors are ignored, since it has ended."""
    close = getattr(episode, "close", None)
    if close is not None:
        with contextlib.suppress(Exception):
            close()


class Workers(Protocol):
    """Interface of the workers of an environment's episodes, which are identified by handles."""

    async def begin(self, task: Task, seed: int, seconds: float | None) -> tuple[Any, RawStart]:
        """Start a new episode, and return its handle and first observation."""
        ...

    async def restore(
        self, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None, seconds: float | None
    ) -> tuple[Any, Any]:
        """Restore an episode after some actions, and return its handle and state."""
        ...

    async def act(self, handle: Any, action: Any, seconds: float | None) -> RawStep:
        """Execute one step of an episode; return the result, the state after it, and a snapshot if supported."""
        ...

    def end(self, handle: Any) -> None:
        """Close an episode, without waiting for it."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class InlineWorkers:
    """Runs episodes in the event loop itself, for pure and fast or for asynchronous environments."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def begin(self, task: Task, seed: int, seconds: float | None) -> tuple[Any, RawStart]:
        """Start an episode in the event loop; return the episode as its handle, and its first observation."""
        with of_environment():
            episode: Any = self._environment.reset(task, seed)
            if inspect.isawaitable(episode):
                episode = await _in_time(episode, seconds)
            return _begun(self._environment, episode)

    async def restore(
        self, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None, seconds: float | None
    ) -> tuple[Any, Any]:
        """Restore an episode in the event loop; return the episode as its handle, and its state."""
        with of_environment():
            episode: Any = self._environment.restore(task, seed, actions, snapshot)  # type: ignore[attr-defined]
            if inspect.isawaitable(episode):
                episode = await _in_time(episode, seconds)
            return episode, episode.state_key()

    async def act(self, handle: Any, action: Any, seconds: float | None) -> RawStep:
        """Execute one step of an episode in the event loop."""
        with of_environment():
            outcome = handle.step(action)
            if not isinstance(outcome, StepResult) and inspect.isawaitable(outcome):
                outcome = await _in_time(outcome, seconds)
            return _replied(handle, outcome)

    def end(self, handle: Any) -> None:
        """Close an episode."""
        end(handle)

    def close(self) -> None:
        """Do nothing, since there are no workers to end."""


async def _in_time(awaitable: Any, seconds: float | None) -> Any:
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except TimeoutError:
        raise OverdueError(f"it took longer than {seconds} s") from None
