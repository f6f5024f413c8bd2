"""`check`: report violations of the environment protocol before a run."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from agentrl_core.env import protocol_rules as violations
from agentrl_core.env.base import Content, Environment, Task
from agentrl_core.env.protocol_rules import EpisodeLog
from agentrl_core.env.single_agent_view import SingleAgentEpisode, SingleAgentView
from agentrl_core.env.task_check import task_problems
from agentrl_core.exceptions import InvalidInputError

Actions = Sequence[str] | Callable[[Task, int, Content], str]

_ACTIONS = ("<call>1+1</call>", "", "<answer>1</answer>", "look", "<action>0</action>")


@dataclass(frozen=True)
class CheckReport:
    """Report of `check` on an environment without violations.

    Args:
        tasks: number of played tasks.
        steps: number of answered actions, without replays.
        ended: number of ended episodes.
        hints: unchecked or noteworthy points, which are not violations.
    """

    tasks: int
    steps: int
    ended: int
    hints: tuple[str, ...] = ()


def check(
    environment: Environment,
    *,
    tasks: int = 3,
    actions: Actions = _ACTIONS,
    seed: int = 0,
    steps: int = 8,
) -> CheckReport:
    """Play a few episodes of an environment in all ways that the runtime uses; raise an error for protocol violations.

    It checks: tasks (the same in every call, disjoint splits, payloads that a new process can restore); equal episodes
    for equal (task, seed, actions), one after the other, interleaved and in threads, or from a pickle if they run in
    processes; types of observations, outcomes, facts and state keys; facts that are declared but never returned, or
    returned but not declared; state keys that never change; `close`, `tools`, `snapshot` and `restore` if they exist;
    changes of global random generators.

    In a multi-agent environment all moving agents take the same action; `restore` is not checked there.

    The report's hints list points that a few episodes cannot show.

    Args:
        environment: the environment.
        tasks: number of checked tasks of each split.
        actions: texts to play one after the other, or a function of (task, number of the step, observation). Choose
            actions that reach tool calls, mistakes and the end of an episode; other parts are not checked.
        seed: seed of the episodes.
        steps: longest episode.

    Raises:
        InvalidInputError: the environment violates the protocol; the message has a line for each violation.

    Example:
        >>> from agentrl_core import env
        >>> env.check(env.ReasoningGym(["lcm"]), actions=["<call>lcm(2,3)</call>", "<answer>6</answer>"])
        CheckReport(tasks=3, steps=6, ended=3, hints=())
    """
    if tasks < 1 or steps < 1:
        name, number = ("tasks", tasks) if tasks < 1 else ("steps", steps)
        raise InvalidInputError(f"check: {name} is {number}; give at least 1")
    if not callable(actions) and (isinstance(actions, str) or not actions):
        raise InvalidInputError(
            f"check: actions is {actions!r}; give a list of at least one text, or a function of (task, step number, "
            "observation)"
        )
    # A separate thread may run an event loop, even if the caller's thread already runs one, as in Jupyter.
    with ThreadPoolExecutor(1) as thread:
        checker = thread.submit(_Checker(environment, tasks, actions, seed, steps).run).result()
    if checker.problems:
        lines = "\n".join(f"- {problem}" for problem in dict.fromkeys(checker.problems))
        raise InvalidInputError(f"{type(environment).__name__} breaks the protocol of environments:\n{lines}")
    return CheckReport(
        tasks=len(checker.records),
        steps=sum(len(record.outcomes) for record in checker.records),
        ended=sum(record.ended for record in checker.records),
        hints=tuple(dict.fromkeys(checker.hints)),
    )


class _Checker:
    def __init__(self, environment: Environment, count: int, actions: Actions, seed: int, steps: int) -> None:
        self.environment = environment
        self.count = count
        self.actions = actions
        self.seed = seed
        self.steps = steps
        self.problems: list[str] = []
        self.hints: list[str] = []
        self.records: list[EpisodeLog] = []
        self.loop = asyncio.new_event_loop()

    def run(self) -> _Checker:
        try:
            self.problems += violations.of_declarations(self.environment)
            tasks = self._tasks()
            generators = _generators()
            self.records = [self._play(task) for task in tasks]
            if _generators() != generators:
                self.problems.append(
                    "reset or step moves a global random generator (random or numpy.random): "
                    "use a generator of the episode's own, seeded by task and seed"
                )
            if not self.problems:  # the following checks compare with these episodes
                self._look_at_all()
                self._replay()
        finally:
            self.loop.close()
        return self

    def settled(self, value: Any) -> Any:
        """Return a result, awaited if needed."""
        if inspect.isawaitable(value):
            return self.loop.run_until_complete(_result(value))
        return value

    # -- tasks

    def _tasks(self) -> list[Task]:
        environment, count = self.environment, self.count
        try:
            tasks = _listed(environment.tasks(count))
            self.problems += violations.of_tasks(tasks, count)
            if self.problems:
                return []
            if (again := _listed(environment.tasks(count))) != tasks:
                pairs: Any = enumerate(zip(tasks, again, strict=False)) if isinstance(again, Sequence) else ()
                where = next((f" at tasks()[{place}]" for place, (old, new) in pairs if old != new), "")
                self.problems.append(
                    f"tasks() returns other tasks in a second call{where}: make each task depend on its number only"
                )
            elif _listed(environment.tasks(count - 1, start=1)) != tasks[1:]:
                self.problems.append(
                    f"tasks({count - 1}, start=1) is not tasks({count})[1:]: number the tasks from start"
                )
        except Exception as error:  # noqa: BLE001 -- all errors of the author's code are reported
            self.problems.append(f"tasks({count}) raises {_named(error)}: return {count} tasks")
            return []
        try:
            held_out = list(environment.tasks(count, split="held_out"))
        except Exception as error:  # noqa: BLE001 -- see above
            self.hints.append(f"held-out tasks were not checked: tasks(split='held_out') raises {_named(error)}")
            held_out = []
        broken = [f"tasks({count}, split='held_out')[{place}] {problem}" for place, problem in task_problems(held_out)]
        if broken:
            self.problems += broken
            return []
        shared = {task.task_id for task in tasks} & {task.task_id for task in held_out}
        if shared:
            self.problems.append(f"task {min(shared)!r} is in both splits: remove it from one of them")
        self.problems += violations.of_payloads(environment, tasks)
        return list(tasks)

    # -- episodes

    def _play(self, task: Task) -> EpisodeLog:
        """Play one episode, checking each result, and return its log."""
        record = EpisodeLog(task)
        episode: Any = None
        place = f"reset of task {task.task_id!r}"
        try:
            episode = self.settled(cast(Any, self.environment).reset(task, self.seed))
            if hasattr(episode, "observations"):
                self.environment, episode = SingleAgentView(self.environment), SingleAgentEpisode(episode)
            record.first = observation = episode.observation
            self.problems += violations.of_observation(observation, place)
            self.problems += violations.of_tools(episode)
            self._note(record, episode)
            while not record.ended and len(record.outcomes) < self.steps:
                number = len(record.outcomes)
                place = f"actions(), for step {number} of task {task.task_id!r},"
                action = self._action(task, number, observation)
                place = f"step {number} of task {task.task_id!r}, action {action[:60]!r}"
                outcome = self.settled(episode.step(action))
                broken = violations.of_outcome(outcome, place, getattr(self.environment, "facts", {}))
                self.problems += broken
                if broken:
                    break
                record.actions.append(action)
                record.outcomes.append(outcome)
                observation = outcome.observation if outcome.observation is not None else observation
                self._note(record, episode)
        except Exception as error:  # noqa: BLE001 -- see above
            remedies = {
                "reset": "return an episode for each task",
                "actions()": "return an action, a text",
                "step": "for an action that cannot be done, return an observation and a flag",
            }
            remedy = next(text for begin, text in remedies.items() if place.startswith(begin))
            self.problems.append(f"{place} raises {_named(error)}: {remedy}")
        finally:
            self._close(episode, task)
        return record

    def _action(self, task: Task, number: int, observation: Content) -> str:
        if callable(self.actions):
            return self.actions(task, number, observation)
        return self.actions[number % len(self.actions)]

    def _note(self, record: EpisodeLog, episode: Any) -> None:
        key = episode.state_key()
        if not isinstance(key, bytes):
            self.problems.append(f"state_key() returned {type(key).__name__}; return bytes")
        record.keys.append(key)
        snapshot = episode.snapshot() if hasattr(episode, "snapshot") and not record.ended else None
        if not isinstance(snapshot, bytes | None):
            self.problems.append(f"snapshot() returned {type(snapshot).__name__}; return bytes")
        record.snapshots.append(snapshot)

    def _close(self, episode: Any, task: Task) -> None:
        if not hasattr(episode, "close"):
            return
        for time in ("close()", "a second close()"):
            try:
                self.settled(episode.close())
            except Exception as error:  # noqa: BLE001 -- see above
                self.problems.append(
                    f"{time} of the episode of task {task.task_id!r} raises {_named(error)}: permit every close()"
                )
                return

    def _look_at_all(self) -> None:
        facts = getattr(self.environment, "facts", {})
        ended = any(record.ended for record in self.records)
        reported = {name for record in self.records for outcome in record.outcomes for name in outcome.facts or {}}
        for name in sorted(facts.keys() - reported):
            if ended:
                self.problems.append(
                    f"fact {name!r} is declared, but in no StepResult: return it, or give check actions that lead to it"
                )
            else:
                self.hints.append(f"fact {name!r} was not returned, as no episode ended within {self.steps} actions")
        if not ended:
            self.hints.append("no episode ended: give actions that end one, or more steps")
        self.problems += violations.of_keys(self.records)

    # -- the same episodes again

    def _replay(self) -> None:
        if not getattr(self.environment, "replayable", True):
            self.hints.append("replayable is False: forks are refused, and no episode was replayed")
            return
        for record in self.records:
            differences = self._differences(self.environment, record, "played a second time")
            self.problems += [f"{line}; make episodes depend only on task, seed and actions" for line in differences]
        if self.problems:
            return
        self.problems += self._side_by_side()
        runs = getattr(self.environment, "runs", "thread")
        if runs == "process":
            self.problems += self._out_of_a_pickle()
        elif runs == "thread" and not self.problems:
            self.problems += self._in_threads()
        self.problems += self._restored()

    def _differences(self, environment: Any, record: EpisodeLog, how: str) -> list[str]:
        """Replay the actions of a log, and return the differences."""
        episode: Any = None
        try:
            episode = self.settled(environment.reset(record.task, self.seed))
            return violations.of_replay(record, self._again(episode, record), how)
        except Exception as error:  # noqa: BLE001 -- see above
            return [f"task {record.task.task_id!r}, {how}, raises {_named(error)}"]
        finally:
            self._close(episode, record.task)

    def _again(self, episode: Any, record: EpisodeLog, start: int = 0) -> EpisodeLog:
        replayed = EpisodeLog(record.task, episode.observation, keys=[episode.state_key()])
        for action in record.actions[start:]:
            replayed.outcomes.append(self.settled(episode.step(action)))
            replayed.keys.append(episode.state_key())
        return replayed

    def _side_by_side(self) -> list[str]:
        """Replay all episodes interleaved, one action of each at a time, and return the differences."""
        how = "played side by side with others"
        episodes: list[Any] = []
        try:
            episodes = [self.settled(cast(Any, self.environment).reset(r.task, self.seed)) for r in self.records]
            replayed = [
                EpisodeLog(record.task, episode.observation, keys=[episode.state_key()])
                for record, episode in zip(self.records, episodes, strict=True)
            ]
            for number in range(self.steps):
                for record, episode, copy in zip(self.records, episodes, replayed, strict=True):
                    if number < len(record.actions):
                        copy.outcomes.append(self.settled(episode.step(record.actions[number])))
                        copy.keys.append(episode.state_key())
        except Exception as error:  # noqa: BLE001 -- see above
            return [f"an episode {how} raises {_named(error)}: episodes must share no state"]
        finally:
            for record, episode in zip(self.records, episodes, strict=False):
                self._close(episode, record.task)
        pairs = zip(self.records, replayed, strict=True)
        return [f"{line}; episodes must share no state" for r, c in pairs for line in violations.of_replay(r, c, how)]

    def _in_threads(self) -> list[str]:
        def lines(record: EpisodeLog) -> list[str]:
            checker = _Checker(self.environment, self.count, self.actions, self.seed, self.steps)
            try:
                differences = checker._differences(self.environment, record, "played in a thread beside others")
                return differences + checker.problems
            finally:
                checker.loop.close()

        with ThreadPoolExecutor(4) as threads:
            differences = [line for each in threads.map(lines, [*self.records, *self.records]) for line in each]
        return [f"{line}; not safe in threads: set runs = 'process'" for line in differences]

    def _out_of_a_pickle(self) -> list[str]:
        try:
            environment = pickle.loads(pickle.dumps(self.environment))  # noqa: S301 -- the author's own
        except Exception as error:  # noqa: BLE001 -- see above
            return [f"runs is 'process', but the environment cannot be pickled ({_named(error)}): make it picklable"]
        try:
            return [
                f"{line}; keep in the pickle all that episodes depend on"
                for record in self.records
                for line in self._differences(environment, record, "played by a pickled copy of the environment")
            ]
        finally:
            if hasattr(environment, "close"):
                self.settled(environment.close())

    def _restored(self) -> list[str]:
        restore = getattr(self.environment, "restore", None)
        if restore is None:
            if any(snapshot is not None for record in self.records for snapshot in record.snapshots):
                return ["episodes have snapshot(), but the environment has no restore(): add it, or remove snapshot()"]
            return []
        lines = []
        remedy = "let restore() return the state after these actions"
        for record in self.records:
            start = len(record.actions) // 2
            for snapshot in {record.snapshots[start], None}:
                how = f"restored {'from a snapshot' if snapshot else 'without a snapshot'} after {start} actions"
                episode: Any = None
                try:
                    episode = self.settled(restore(record.task, self.seed, record.actions[:start], snapshot))
                    replayed = self._again(episode, record, start)
                except Exception as error:  # noqa: BLE001 -- see above
                    lines.append(f"task {record.task.task_id!r}, {how}, raises {_named(error)}; {remedy}")
                    continue
                finally:
                    self._close(episode, record.task)
                rest = EpisodeLog(
                    record.task, replayed.first, outcomes=record.outcomes[start:], keys=record.keys[start:]
                )
                lines += [f"{line}; {remedy}" for line in violations.of_replay(rest, replayed, how)]
        return lines


def _listed(tasks: Any) -> Any:
    """Return a sequence of tasks as a list; other values are unchanged, and refused later."""
    return list(tasks) if isinstance(tasks, Sequence) and not isinstance(tasks, str) else tasks


async def _result(value: Awaitable[Any]) -> Any:
    return await value


def _named(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _generators() -> tuple[object, bytes]:
    numpy = cast("Mapping[str, Any]", np.random.get_state(legacy=False))  # noqa: NPY002 -- looks whether it moved
    state = numpy["state"]
    return random.getstate(), state["key"].tobytes() + int(state["pos"]).to_bytes(4, "little")
