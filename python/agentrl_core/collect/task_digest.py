"""A digest of a run's tasks, to detect a restart with another data set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_core import _core
from agentrl_core._util.files import new_file
from agentrl_core.env.base import Task
from agentrl_core.exceptions import StoreError

_MOST_READ = 4096
_MOST_MADE = 16
"""Limit for tasks that are generated on demand."""


def task_digest(tasks: Mapping[str, Sequence[Task]]) -> dict[str, dict[str, Any]]:
    """Return for each environment the number of its tasks, the first and last id, and a digest of a sample of them.

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


def tasks_begun_with(run: str, tasks: Mapping[str, Any], *, replace: bool) -> dict[str, Any]:
    """Return the record that a run began with, from `tasks.json` in its folder; the first call writes it.

    So another data set is found before an iteration was closed, too: only then does the state of the store have it.

    Args:
        run: folder of the run.
        tasks: the record of now.
        replace: write it in any case.

    Raises:
        StoreError: the file cannot be read or written.
    """
    file = Path(run, "tasks.json")
    try:
        if file.exists() and not replace:
            return dict(json.loads(file.read_text("utf-8")))
        with new_file(file) as opened:
            opened.write(json.dumps(tasks).encode())
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{file}, the record of the tasks that the run began with, cannot be read or written: {error}; permit "
            "access to it and free space on its disk, or replace it by Collector(..., allow_changes=True)"
        ) from None
    return dict(tasks)


def _text(task: Task) -> str:
    """Return a task as a text; only the types of a payload that is not plain JSON."""
    parts = (task.task_id, task.question, task.domain, getattr(task, "payload", None), getattr(task, "solution", ()))
    try:
        return json.dumps(parts, sort_keys=True, default=lambda value: type(value).__qualname__)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(parts[:3])
