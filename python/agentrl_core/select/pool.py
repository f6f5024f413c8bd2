"""The tasks that are selected from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core._core import Table
from agentrl_core.env.base import Task
from agentrl_core.exceptions import NotFoundError


class Pool:
    """The tasks of a run by row, with what is known of them. Row numbers never change.

    Args:
        tasks: each with the name of its world.
        statistics: the task table of the run: its last row of a task counts. None: nothing was attempted yet.

    Attributes:
        domains: names of the domains, by the codes of column `domain`.
    """

    def __init__(self, tasks: Sequence[tuple[str, Task]], statistics: Table | None = None) -> None:
        self._tasks = tasks
        self._statistics = statistics
        self._columns: dict[str, NDArray[Any]] = {}
        self.domains: list[str] = list(dict.fromkeys(task.domain for _, task in tasks))

    def __len__(self) -> int:
        """How many tasks there are."""
        return len(self._tasks)

    def column(self, name: str) -> NDArray[Any]:
        """A number for each task: `attempts`, `successes`, `last_version` (-1: never used), `domain` (a code).

        Raises:
            NotFoundError: there is no such column.
        """
        if not self._columns:
            self._columns = self._read()
        if name not in self._columns:
            raise NotFoundError(f"the pool has no column {name!r}; it has: {', '.join(self._columns)}")
        return self._columns[name]

    def _read(self) -> dict[str, NDArray[Any]]:
        codes = {domain: code for code, domain in enumerate(self.domains)}
        columns: dict[str, NDArray[Any]] = {
            "attempts": np.zeros(len(self), np.int64),
            "successes": np.zeros(len(self), np.int64),
            "last_version": np.full(len(self), -1, np.int64),
            "domain": np.array([codes[task.domain] for _, task in self._tasks], np.int32),
        }
        if self._statistics is not None:
            rows = {task.task_id: row for row, (_, task) in enumerate(self._tasks)}
            names = ("attempts", "successes", "last_version")
            known = (self._statistics.column(name) for name in names)
            for task_id, *values in zip(self._statistics.column("task_id"), *known, strict=True):
                if task_id in rows:
                    for name, value in zip(names, values, strict=True):
                        columns[name][rows[task_id]] = -1 if value is None else value
        return columns

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """The ids of some tasks."""
        return [self._tasks[row][1].task_id for row in rows.tolist()]

    def tasks(self, rows: NDArray[np.int64]) -> list[tuple[str, Task]]:
        """Some tasks, each with the name of its world."""
        return [self._tasks[row] for row in rows.tolist()]
