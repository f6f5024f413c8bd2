"""Describe what is wrong with a task; used wherever tasks are accepted."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl_core._util.json_text import is_unicode

_TEXTS = ("task_id", "question", "domain")


def task_problem(task: Any) -> str | None:
    """Return an error text for an invalid task; None if it is valid."""
    if not all(hasattr(task, name) for name in _TEXTS):
        return f"is {task!r:.200}; give env.Task(task_id, question, domain, payload), the first three of them texts"
    for name in _TEXTS:
        if not isinstance(getattr(task, name), str):
            return f"has {name} {getattr(task, name)!r:.80}; give a text"
        if not is_unicode(getattr(task, name)):
            return (
                f"has {name} {getattr(task, name)!r:.80}, which is not Unicode (a lone surrogate); give "
                'text.encode("utf-8", "replace").decode()'
            )
    if not task.task_id.strip():
        return f"has task_id {task.task_id!r}; give a name that is not blank"
    solution = getattr(task, "solution", ())
    texts = not isinstance(solution, str) and isinstance(solution, Sequence)
    if not texts:
        return f"has solution {solution!r:.80} (task {task.task_id!r}); give a list of texts, one for each action"
    for place, each in enumerate(solution):
        if not isinstance(each, str) or not is_unicode(each):
            return f"has solution[{place}] {each!r:.80} (task {task.task_id!r}); give the action, a Unicode text"
    return None


def task_problems(tasks: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Yield the index of each unusable task and the reason: an invalid part, or another task with the same id."""
    seen: dict[str, Any] = {}
    for place, task in enumerate(tasks):
        problem = task_problem(task)
        if problem is not None:
            yield place, problem
            continue
        first = seen.setdefault(task.task_id, task)
        if first is not task and not _same(first, task):
            yield place, f"has the id of another task, {task.task_id!r}; give every task an id of its own"


def _same(one: Any, other: Any) -> bool:
    """Return whether two tasks with one id are equal."""
    if any(getattr(one, name) != getattr(other, name) for name in ("question", "domain")):
        return False
    first, second = ((getattr(each, "payload", None), list(getattr(each, "solution", ()))) for each in (one, other))
    try:
        if operator.eq(first, second):
            return True
    except Exception:  # noqa: BLE001, S110 -- payloads are the environment's own; arrays compare by element
        pass
    return _pickled(first) == _pickled(second)  # NaN differs from itself


def _pickled(value: object) -> bytes:
    """Return a value as bytes, pickled or, if that fails, its text."""
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001 -- see above
        return repr(value).encode()
