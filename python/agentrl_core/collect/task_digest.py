"""A record of the tasks of a run, by which a restart with another data set is found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_core import _core
from agentrl_core.env.base import Task

_MOST_READ = 4096
_MOST_MADE = 16
"""Limit for tasks that are generated on demand."""


def task_digest(tasks: Mapping[str, Sequence[Task]]) -> dict[str, dict[str, Any]]:
    """Return the number of tasks of each environment, the first and last id, and a digest of the contents.

    The digest reads at most 4096 tasks, or 16 that are generated on demand, evenly spaced.
    """
    record: dict[str, dict[str, Any]] = {}
    for name, each in tasks.items():
        count = len(each)
        read = min(count, _MOST_READ if isinstance(each, list) else _MOST_MADE)
        places = [place * (count - 1) // max(read - 1, 1) for place in range(read)]
        found = [each[place] for place in places]
        content = _core.keys.hash_parts(*map(_text, found)).hex() if found else ""
        ids = {"first": found[0].task_id, "last": found[-1].task_id} if found else {}
        record[name] = {"tasks": count, **ids, "content": content}
    return record


def _text(task: Task) -> str:
    """Return a task as a text; only the types of a payload that is not plain JSON."""
    parts = (task.task_id, task.question, task.domain, getattr(task, "payload", None), getattr(task, "solution", ()))
    try:
        return json.dumps(parts, sort_keys=True, default=lambda value: type(value).__qualname__)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(parts[:3])
