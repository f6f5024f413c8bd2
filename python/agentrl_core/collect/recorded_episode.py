"""Episodes with checked and recorded answers, which can be restored after failures."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl_core.collect.rollout_log import (
    Begin,
    IterationLog,
    digest,
    read_answer,
    read_begin,
    write_answer,
    write_begin,
)
from agentrl_core.collect.warn_once import WarnOnce
from agentrl_core.data.table_codes import StepFlag
from agentrl_core.env.base import Context, Environment, ExtraColumn, Task, was_cut
from agentrl_core.env.runtime.process_worker import ProcessWorker
from agentrl_core.env.runtime.ray_worker import RayWorker
from agentrl_core.env.runtime.remote_worker import WorkerPool
from agentrl_core.env.runtime.result_checks import EnvironmentChecks, shown
from agentrl_core.env.runtime.thread_worker import ThreadWorkers
from agentrl_core.env.runtime.worker import InlineWorkers, OverdueError, RawStep, WorkerDiedError, Workers
from agentrl_core.env.step_record import EpisodeError, JointStep, StepRecord
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.progress import Progress

_REPAIRS = 2
"""Number of rebuilds of a failed episode before its branch fails."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a rebuild within an environment's `patience`, and the most to which they double."""


class EnvironmentHandle:
    """An environment, with the workers of its episodes.

    Args:
        environment: the environment, whose declarations are checked here.
        name: its name, if a collection has several.
        processes: number of processes or actors, if it uses them.
        memory_bytes: largest memory of a process; None: no limit.

    Raises:
        InvalidInputError: `runs` or `facts` is not valid.
    """

    def __init__(self, environment: Environment, name: str, processes: int, memory_bytes: int | None = None) -> None:
        self.environment = environment
        self.name = name
        self.title = type(environment).__name__
        self.replayable = bool(getattr(environment, "replayable", True))
        self.is_world_model = bool(getattr(environment, "imagined", False))
        self.restores = hasattr(environment, "restore")
        self.patience = getattr(environment, "patience", 0.0)
        if not (isinstance(self.patience, (int, float)) and 0 <= self.patience < float("inf")):
            raise InvalidInputError(
                f"environment {self.title}: patience={self.patience!r}; give the seconds for which a failing step is "
                "retried, a finite number of at least 0"
            )
        self.facts: Mapping[str, ExtraColumn] = getattr(environment, "facts", None) or {}
        for fact, declared in self.facts.items():
            if not isinstance(declared, ExtraColumn):
                raise InvalidInputError(
                    f"environment {self.title}: facts[{fact!r}] is {declared!r}; give an env.ExtraColumn(level, kind)"
                )
        runs = getattr(environment, "runs", "thread")
        kinds: dict[str, Callable[[], Workers]] = {
            "inline": lambda: InlineWorkers(environment),
            "thread": lambda: ThreadWorkers(environment),
            "process": lambda: WorkerPool(lambda: ProcessWorker(environment, memory_bytes), processes),
            "ray": lambda: WorkerPool(lambda: RayWorker(environment), processes),
        }
        if runs not in kinds:
            raise InvalidInputError(
                f"environment {self.title}: runs={runs!r}; give one of {', '.join(map(repr, kinds))}"
            )
        self._start = kinds[runs]
        self._workers: Workers | None = None
        self._process = 0

    @property
    def workers(self) -> Workers:
        """Workers that run the environment's episodes."""
        if self._workers is None or self._process != os.getpid():  # a forked child does not have its parent's threads
            self._workers, self._process = self._start(), os.getpid()
        return self._workers

    async def close(self) -> None:
        """End the threads and processes of the environment; they restart on the next use."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()


class RecordedEpisode:
    """An episode that survives failures of its environment.

    Recorded answers are returned without running the environment. An episode that raises, takes too long or loses its
    process is rebuilt and replayed by its actions. If the replay differs, it fails.

    Attributes:
        answers: its answers to actions, in order.
        moves: the actions.
        handle: the episode in its environment; None: it has to be built first.
        observation: first observation, once it was reset.
        state_key: first state, once it was reset.
        tools: schemas of the tools in the prompt, once it was reset.
        contexts: contexts of the first observation, and of other conversations, once it was reset.
    """

    observation: Any
    state_key: bytes | str
    tools: Sequence[Mapping[str, Any]] | None
    contexts: Sequence[Context]

    def __init__(
        self,
        world: EnvironmentHandle,
        task: Task,
        seed: int,
        *,
        log: IterationLog,
        progress: Progress,
        notices: WarnOnce,
        seconds: float | None,
    ) -> None:
        self._world = world
        self._task = task
        self._seed = seed
        self._log = log
        self._progress = progress
        self._notices = notices
        self._seconds = seconds
        self._begin: Begin | None = None
        self.answers: list[Any] = []
        self.moves: list[Any] = []
        self._snapshots: list[Any] = []
        self.handle: Any = None
        self._checks = EnvironmentChecks(world.title, task.task_id, world.facts)

    @property
    def title(self) -> str:
        """Title of the episode's environment, for messages."""
        return self._world.title

    async def reset(self, name: str) -> None:
        """Reset the episode; see `RunningEpisode`."""
        key = digest(self._task.task_id, str(self._seed), self._world.name)
        self._begin = self._log.find(name, key, read_begin)
        if self._begin is None:
            self._begin = await self._whole(self._build)
            self._log.keep(name, key, self._begin, write_begin)
        self.observation, self.state_key, self.tools, self.contexts = self._begin

    async def ready(self, name: str) -> None:
        """Replay the episode's actions if it is not running; see `RunningEpisode`."""
        if self.handle is None and name not in self._log:
            await self._whole(self._build)

    async def step(self, name: str, action: Any) -> Any:
        """Apply the next action; see `RunningEpisode`."""
        text = action if isinstance(action, str) else json.dumps(action, sort_keys=True)
        key = digest(text, str(len(self.moves)), str(self._seed), *_reasons(action))
        recorded = self._log.find(name, key, read_answer)
        if recorded is not None:
            self.close()
            self._played(action, recorded, None)
            return recorded
        number = len(self.moves) + 1

        async def act() -> tuple[Any, Any]:
            if self.handle is None:
                await self._build()
            reply = await self._world.workers.act(self.handle, action, self._seconds)
            return self._checked(number, action, reply), reply.snapshot

        answer, snapshot = await self._whole(act)
        for each in answer.of.values() if isinstance(answer, JointStep) else [answer]:
            if each.outcome.reward != each.outcome.reward:  # NaN is not equal to itself
                self._notices.once(
                    "reward",
                    f"environment {self._world.title}: the reward of step {number} of task {self._task.task_id!r} is "
                    "NaN; trajectories without a known reward are left out of the update and counted in the metric "
                    "collect.unscored; pay a number, or None where nothing is paid",
                )
        self._log.keep(name, key, answer, write_answer)
        self._played(action, answer, snapshot)
        return answer

    def _played(self, action: Any, answer: Any, snapshot: Any) -> None:
        """Record an answered action."""
        self.moves.append(action)
        self.answers.append(answer)
        self._snapshots.append(snapshot)

    def copy(self, turns: int) -> RecordedEpisode:
        """Return a copy of the episode after the first `turns` actions."""
        if not self._world.replayable:
            raise InvalidInputError(
                f"environment {self._world.title} has replayable=False, so its episodes cannot be forked or restored; "
                'use episode="keep", or a rollout without forks'
            )
        other = RecordedEpisode(
            self._world,
            self._task,
            self._seed,
            log=self._log,
            progress=self._progress,
            notices=self._notices,
            seconds=self._seconds,
        )
        if self._begin is not None:
            other._begin = self._begin
            other.observation, other.state_key, other.tools, other.contexts = self._begin
        other.moves, other.answers = self.moves[:turns], self.answers[:turns]
        other._snapshots = self._snapshots[:turns]
        return other

    def close(self) -> None:
        """Drop the running episode."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._world.workers.end(handle)

    async def _whole(self, work: Callable[[], Any]) -> Any:
        """Await a call on the episode; after a failure of worker or environment, rebuild the episode and try again."""
        repairs, pause = 0, _FIRST_PAUSE
        until: float | None = None
        self._progress.at_environment += 1
        try:
            while True:
                try:
                    return await work()
                except (EpisodeError, InvalidInputError):
                    raise
                except WorkerDiedError as error:
                    # Another episode may have crashed the process: that one is charged, and fails eventually.
                    self.handle = None
                    repairs, reason = repairs + error.culprit, str(error)
                except OverdueError as error:
                    self.handle = None
                    self._progress.abandoned += error.abandoned
                    repairs, reason = repairs + 1, str(error)
                except Exception as error:  # noqa: BLE001 -- whatever somebody's environment raises
                    self.close()
                    repairs, reason = repairs + 1, f"{type(error).__name__}: {error}"
                until = until or time.monotonic() + self._world.patience
                left = until - time.monotonic()
                if (repairs > _REPAIRS and left <= 0) or not self._world.replayable:
                    raise EpisodeError(
                        f"environment {self._world.title}, step {len(self.moves) + 1} of task {self._task.task_id!r} "
                        f"failed {max(repairs, 1)} time{'s' * (repairs > 1)} (last error: {reason}); correct the "
                        "environment"
                    )
                self._progress.repairs += 1
                if repairs and self._world.patience:
                    self._notices.once(
                        "patience",
                        f"environment {self._world.title} fails ({reason}); its episodes are retried for "
                        f"{self._world.patience:g} s",
                    )
                    await asyncio.sleep(min(pause, max(left, 0.0)))
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._progress.at_environment -= 1

    async def _build(self) -> Begin | None:
        """Restore the episode after its recorded actions, or replay them in a new one; return the episode's start."""
        workers = self._world.workers
        if self.moves and self._world.restores:
            snapshot = self._snapshots[-1] or self._order()
            self.handle, state = await workers.restore(
                self._task, self._seed, list(self.moves), snapshot, self._seconds
            )
            before = self.answers[-1].state_key
            self._compare(f"step {len(self.moves)}", {"state_key": before}, {"state_key": state})
            return self._begin
        self.handle, first = await workers.begin(self._task, self._seed, self._seconds)
        begin = self._checks.start(first)
        if self._begin is None:
            self._begin = begin
        else:
            self._compare("reset", _named(*self._begin[:2]), _named(*begin[:2]))
        for number, (action, before) in enumerate(zip(self.moves, self.answers, strict=True), start=1):
            reply = await workers.act(self.handle, action, self._seconds)
            answer = self._checked(number, action, reply)
            self._compare(f"step {number}", _shown(before), _shown(answer))
        return self._begin

    def _order(self) -> bytes | None:
        """Return the state keys of all requests, in the order they were made, as JSON; None without conversations."""
        if not self.contexts:
            return None
        states = [self.state_key, *(context.state_key for context in self.contexts[1:])]
        for number, answer in enumerate(self.answers, start=1):
            if number == len(states):
                states.append(answer.state_key)
            states += [context.state_key for context in answer.outcome.parallel_requests]
        return json.dumps([state if isinstance(state, str) else state.decode("latin-1") for state in states]).encode()

    def _checked(self, step: int, action: Any, reply: RawStep) -> Any:
        """Check the result of a step, and return it as a record, or as a joint step of several agents."""
        self._checks.step = step
        agents = self.observation
        if not isinstance(agents, JointStep):
            return _without_mistake(action, self._checks.answer(reply.outcome, reply.state_key))
        joint = self._checks.joint(reply.outcome, reply.state_key, action, agents.of)
        of = {agent: _without_mistake(action.get(agent, ""), answer) for agent, answer in joint.of.items()}
        return replace(joint, of=of)

    def _compare(self, place: str, before: Mapping[str, object], now: Mapping[str, object]) -> None:
        for name, old in before.items():
            if old != now[name]:
                self.close()
                raise EpisodeError(
                    f"{name} of {place} was {shown(old)} but is {shown(now[name])} in the replay: environment "
                    f"{self._world.title} is not deterministic for task {self._task.task_id!r}; make it deterministic, "
                    f"or set its replayable to False"
                )


def _reasons(action: str | Mapping[str, str]) -> list[str]:
    """Return the finish reasons of actions that the policy did not end itself, for the request's digest."""
    actions = {"": action} if isinstance(action, str) else action
    return [
        f"{agent} {reason}"
        for agent, each in sorted(actions.items())
        if (reason := getattr(each, "finish_reason", "stop")) != "stop"
    ]


def _without_mistake(action: str, answer: StepRecord) -> StepRecord:
    """Return the record of an action, without `StepFlag.FORMAT_ERROR` if a limit cut the action."""
    outcome = answer.outcome
    if not (outcome.flags & StepFlag.FORMAT_ERROR and was_cut(action)):
        return answer
    return replace(answer, outcome=replace(outcome, flags=outcome.flags & ~int(StepFlag.FORMAT_ERROR)))


def _named(observation: object, state_key: object) -> dict[str, object]:
    return {"observation": observation, "state_key": state_key}


def _shown(answer: Any) -> dict[str, object]:
    if isinstance(answer, JointStep):
        of = {f"{name} for {agent}": value for agent, each in answer.of.items() for name, value in _shown(each).items()}
        return {"turn_of": answer.turn_of, "state_key": answer.state_key, "agents": sorted(answer.of), **of}
    outcome = answer.outcome
    ends = {"terminated": outcome.terminated, "truncated": outcome.truncated}
    return {**_named(outcome.observation, answer.state_key), **ends}
