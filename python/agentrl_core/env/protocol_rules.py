"""Rules of `check`: each function checks one aspect and returns a sentence for each violation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from agentrl_core._util.json_text import is_unicode
from agentrl_core.env.base import Content, Environment, ExtraColumn, StepResult, Task
from agentrl_core.env.image import is_content
from agentrl_core.env.task_check import task_problems

_RUNS = ("inline", "thread", "process", "ray")
_ROLES = ("system", "user", "assistant", "tool")


@dataclass
class EpisodeLog:
    """Log of a played episode: its observations, actions, results, state keys and snapshots."""

    task: Task
    first: Content | None = None
    actions: list[str] = field(default_factory=list)
    outcomes: list[StepResult] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    snapshots: list[bytes | None] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the last result ended the episode."""
        return bool(self.outcomes) and (self.outcomes[-1].terminated or self.outcomes[-1].truncated)


def of_declarations(environment: Environment) -> list[str]:
    """Check the declarations of the environment."""
    lines = []
    runs = getattr(environment, "runs", "thread")
    if runs not in _RUNS:
        lines.append(f"runs is {runs!r}; give one of {', '.join(map(repr, _RUNS))}")
    replayable = getattr(environment, "replayable", True)
    if not isinstance(replayable, bool):
        lines.append(f"replayable is {replayable!r}; give True or False")
    patience = getattr(environment, "patience", 0.0)
    if not isinstance(patience, (int, float)) or not 0 <= patience < float("inf"):
        lines.append(f"patience is {patience!r}; give seconds, at least 0")
    facts = getattr(environment, "facts", {})
    if not isinstance(facts, Mapping):
        return [*lines, f"facts is a {type(facts).__name__}; give a mapping of names to ExtraColumn"]
    for name, fact in facts.items():
        # `reward.format` is the part `format` of a reward.
        if not isinstance(name, str) or not name.removeprefix("reward.").isidentifier():
            lines.append(
                f"fact {name!r} has a name that is not an identifier; use letters, digits and _, such as 'tool_calls'"
            )
        if (
            not isinstance(fact, ExtraColumn)
            or fact.level not in ("step", "trajectory")
            or fact.kind not in ("number", "key")
        ):
            lines.append(f"fact {name!r} is {fact!r}; give ExtraColumn('step' or 'trajectory', 'number' or 'key')")
    return lines


def of_tasks(tasks: object, count: int) -> list[str]:
    """Check the result of `tasks(count)`."""
    if not isinstance(tasks, list) or not all(isinstance(task, Task) for task in tasks):
        return [f"tasks({count}) returned {_short(tasks)}; return a list or sequence of Task"]
    if len(tasks) != count:
        return [f"tasks({count}) returned {len(tasks)} tasks; return {count}"]
    return [f"tasks({count})[{place}] {problem}" for place, problem in task_problems(tasks)]


def of_payloads(environment: Any, tasks: Sequence[Task]) -> list[str]:
    """Check that a new process can restore the tasks."""
    if not hasattr(environment, "task"):
        return [
            f"the payload of task {task.task_id!r} is not plain JSON ({type(task.payload).__name__}), so a new "
            f"process cannot restore the task; give plain JSON, or add a method task(task_id)"
            for task in tasks
            if not _is_plain(task.payload)
        ]
    lines = []
    for task in tasks:
        try:
            again = environment.task(task.task_id)
        except Exception as error:  # noqa: BLE001 -- all errors of the author's code are reported
            lines.append(f"task({task.task_id!r}) raises {type(error).__name__}: {error}; return that task of tasks()")
        else:
            if again != task:
                lines.append(f"task({task.task_id!r}) returned another task than tasks(); return the same one")
    return lines


def of_observation(observation: object, place: str) -> list[str]:
    """Check that an observation is a text, a message, or messages."""
    if isinstance(observation, str):
        return _of_text(observation, f"{place}: the observation")
    messages = [observation] if isinstance(observation, Mapping) else observation
    if not isinstance(messages, Sequence) or not messages:
        return [f"{place}: the observation is {_short(observation)}; give a text or messages"]
    remedy = f"give a dict with one of the roles {', '.join(_ROLES)}, and a text in content"
    texts = [(number, text) for number, message in enumerate(messages) for text in _texts(message)]
    return [
        line for number, text in texts for line in _of_text(text, f"{place}: message {number} of the observation")
    ] + [
        f"{place}: message {number} of the observation is {_short(message)}; {remedy}"
        for number, message in enumerate(messages)
        if not (
            isinstance(message, Mapping)
            and message.get("role") in _ROLES
            and (is_content(message.get("content")) or "tool_calls" in message)
        )
    ]


def _texts(message: Any) -> list[str]:
    """Return the texts in a message's content."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return [content]
    return [part for part in content if isinstance(part, str)] if isinstance(content, Sequence) else []


def _of_text(text: str, what: str) -> list[str]:
    """Check that a text is valid Unicode, without a lone surrogate."""
    if is_unicode(text):
        return []
    remedy = 'give text.encode("utf-8", "replace").decode()'
    return [f"{what} is {_short(text)}, which is not Unicode (a lone surrogate); {remedy}"]


def of_tools(episode: Any) -> list[str]:
    """Check the schemas of tools."""
    tools = getattr(episode, "tools", [])
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        return [f"tools of an episode is {_short(tools)}; give a list of JSON schemas"]
    return [
        f"tools[{place}] of an episode is {_short(tool)}; give a JSON schema"
        for place, tool in enumerate(tools)
        if not isinstance(tool, Mapping) or not _is_json(tool)
    ]


def of_outcome(outcome: Any, place: str, facts: Mapping[str, ExtraColumn]) -> list[str]:
    """Check the types of a result, and its facts against the declarations."""
    if not isinstance(outcome, StepResult):
        return [f"{place} returned {_short(outcome)}; return an env.StepResult"]
    lines = []
    if outcome.observation is not None:
        lines += of_observation(outcome.observation, place)
    elif not outcome.terminated and not outcome.truncated:
        lines.append(
            f"{place}: observation is None, but the episode continues; give an observation, or terminated=True"
        )
    kinds: Mapping[str, tuple[type | tuple[type, ...], str]] = {
        "reward": ((int, float, type(None)), "a number or None"),
        "terminated": (bool, "True or False"),
        "truncated": (bool, "True or False"),
        "flags": (int, "an integer of StepFlag's bits"),
        "success": ((bool, type(None)), "True, False or None"),
        "info": ((Mapping, type(None)), "a mapping or None"),
        "facts": ((Mapping, type(None)), "a mapping or None"),
    }
    for name, (kind, expected) in kinds.items():
        value = getattr(outcome, name)
        if not isinstance(value, kind):
            lines.append(f"{place}: {name} is {_short(value)}; give {expected}")
    if isinstance(outcome.reward, int | float) and not _fits(outcome.reward):
        lines.append(f"{place}: reward is {outcome.reward!r}; give a number that fits 32 bits, None, or NaN")
    flags: object = outcome.flags
    if isinstance(flags, int) and not 0 <= flags < 1 << 32:
        lines.append(f"{place}: flags is {outcome.flags!r}; give an integer from 0 to 2^32 - 1")
    if isinstance(outcome.info, Mapping) and not _is_json(outcome.info):
        lines.append(f"{place}: info {_short(outcome.info)} is not JSON; give numbers, texts, lists and dicts of them")
    if isinstance(outcome.facts, Mapping):
        lines += _of_facts(outcome.facts, place, facts)
    return lines


def _of_facts(reported: Mapping[str, object], place: str, facts: Mapping[str, ExtraColumn]) -> list[str]:
    lines = []
    for name, value in reported.items():
        if name not in facts:
            lines.append(f"{place}: fact {name!r} is returned but not declared; add it to the environment's facts")
        elif facts[name].kind == "number":
            if isinstance(value, bool) or not isinstance(value, int | float):
                lines.append(f"{place}: fact {name!r} is {value!r}, but declared a number; give a number")
            elif not _fits(value):
                lines.append(f"{place}: fact {name!r} is {value!r}; give a number that fits 32 bits, or NaN")
        elif isinstance(value, str) and not is_unicode(value):
            lines += _of_text(value, f"{place}: fact {name!r}")
        elif not isinstance(value, str | bytes):
            lines.append(f"{place}: fact {name!r} is {value!r}, but declared a key; give a text or bytes")
    return lines


def of_keys(records: Sequence[EpisodeLog]) -> list[str]:
    """Check that state keys are not all equal if observations differ."""
    observations = [record.first for record in records]
    observations += [outcome.observation for r in records for outcome in r.outcomes if outcome.observation is not None]
    keys = {key for record in records for key in record.keys}
    if len(keys) == 1 and any(each != observations[0] for each in observations):
        key = _short(next(iter(keys)))
        return [f"state_key() is {key} in every state though observations differ; return other bytes for each state"]
    return []


def of_replay(record: EpisodeLog, again: EpisodeLog, how: str) -> list[str]:
    """Return the first difference between a log and a replay of the same actions."""
    task = f"task {record.task.task_id!r}, {how}"
    if record.first != again.first:
        return [f"{task}, begins with {_short(again.first)}, but began with {_short(record.first)}"]
    for number, (was, now) in enumerate(zip(record.keys, again.keys, strict=True)):
        if number:
            for each in fields(StepResult):
                old, new = (getattr(o.outcomes[number - 1], each.name) for o in (record, again))
                if not _equal(old, new):
                    return [f"{task}, has another {each.name} at step {number - 1}: {_short(new)}, was {_short(old)}"]
        if was != now:
            return [f"{task}, has another state_key before step {number}: {_short(now)}, was {_short(was)}"]
    return []


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return type(one) is type(other) and one == other


def _fits(number: float) -> bool:
    """Return whether a number is NaN, or fits into 32-bit floats."""
    try:
        return not abs(float(number)) > float(np.finfo(np.float32).max)
    except OverflowError:
        return False


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _is_plain(value: object) -> bool:
    """Return whether a value is unchanged after conversion to JSON and back."""
    return _is_json(value) and _equal(json.loads(json.dumps(value)), value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
