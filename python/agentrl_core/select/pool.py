"""The pool of tasks that select chooses from."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from agentrl_core._core import Table
from agentrl_core.env.base import Task
from agentrl_core.exceptions import InvalidInputError, NotFoundError

_FACTS = {"attempts": 0, "successes": 0, "last_version": -1, "uses": 0}
"""Columns of the task table, with their values for an untried task."""


def _not_numbers(values: Any) -> str:
    """Describe the first of several values that is not a number or vector like the others, for messages."""
    if isinstance(values, str) or not np.iterable(values):
        return f"values is {values!r:.80}"
    shapes: list[tuple[int, ...]] = []
    for row, value in enumerate(values):
        try:
            shapes.append(np.array(value, np.float64).shape)
        except (TypeError, ValueError):
            return f"values: row {row} is {value!r:.80}"
        if shapes[row] != shapes[0]:
            return f"values: row {row} has shape {shapes[row]}, but row 0 has {shapes[0]}"
    return f"values is a {type(values).__name__}"


class MixedTasks(Sequence[tuple[str, Task]]):
    """Tasks of several worlds interleaved, each with the name of its world. A task is created on access.

    Args:
        worlds: the tasks of each world, by the world's name.
        lock: held while a task is created, for access from several threads; None: one thread.
    """

    def __init__(
        self, worlds: Mapping[str, Sequence[Task]], lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._worlds = worlds
        self._lock = nullcontext() if lock is None else lock
        lengths = sorted({len(tasks) for tasks in worlds.values()} - {0})
        self._begins: list[int] = []
        """First row of each stretch in which the same worlds alternate."""
        self._turns: list[tuple[int, list[str]]] = []
        """For each stretch: the first task of each world, and the worlds."""
        begin = before = 0
        for length in lengths:
            names = [name for name, tasks in worlds.items() if len(tasks) >= length]
            self._begins.append(begin)
            self._turns.append((before, names))
            begin += (length - before) * len(names)
            before = length
        self._length = begin
        self._annotated: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        """Number of tasks."""
        return self._length

    @property
    def worlds(self) -> Mapping[str, Sequence[Task]]:
        """Tasks of each world, by the world's name."""
        return self._worlds

    @overload
    def __getitem__(self, row: int) -> tuple[str, Task]: ...
    @overload
    def __getitem__(self, row: slice) -> list[tuple[str, Task]]: ...
    def __getitem__(self, row: int | slice) -> tuple[str, Task] | list[tuple[str, Task]]:
        """Return a task and its world."""
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(self._length))]
        if not 0 <= row < self._length:
            raise IndexError(
                f"row is {row}, but the pool has {self._length} tasks; give a number of at least 0 and below that"
            )
        part = bisect.bisect_right(self._begins, row) - 1
        first, names = self._turns[part]
        number, offset = divmod(row - self._begins[part], len(names))
        name = names[offset]
        with self._lock:
            return name, self._worlds[name][first + number]

    def annotate(self, name: object, values: object) -> None:
        """Add a column with a number or a vector for each task, which selection can read.

        Args:
            name: name of the column.
            values: one row per task in row order, or a table with the number of each task by its id.

        Raises:
            InvalidInputError: the name is that of an existing column of the run, a task has no number, or a task of the
                table is unknown.
        """
        if not (isinstance(name, str) and name.isidentifier()) or name in (*_FACTS, "domain"):
            known = ", ".join([*_FACTS, "domain"])
            raise InvalidInputError(
                f"name={name!r} cannot be the name of a column; give letters, digits and _ without a digit at the "
                f"start, other than {known}"
            )
        if isinstance(values, Mapping):
            ids = [task.task_id for _, task in self]
            missing = [task_id for task_id in ids if task_id not in values]
            unknown = sorted(set(map(str, values)) - set(ids))
            if missing or unknown:
                problem = f"task {missing[0]!r} has none" if missing else f"there is no task {unknown[0]!r}"
                raise InvalidInputError(f"values: {problem}; give one number for each of the pool's {len(self)} tasks")
            values = [values[task_id] for task_id in ids]
        try:
            numbers = np.array(values, np.float64)
        except (TypeError, ValueError):
            raise InvalidInputError(
                f"{_not_numbers(values)}; give a list with one number for each task, or an array of numbers"
            ) from None
        if numbers.ndim < 1 or len(numbers) != len(self):
            rows = len(numbers) if numbers.ndim else "no"
            raise InvalidInputError(f"values has {rows} rows for {len(self)} tasks; give one for each task of the pool")
        self._annotated = {**self._annotated, name: numbers}

    def column(self, name: str) -> NDArray[Any] | None:
        """Return an annotated column, or a column that the tasks of all worlds have; None if there is none.

        Rows are in row order. The columns of a world are the attribute `columns` of its sequence of tasks.
        """
        if name in self._annotated:
            return self._annotated[name]
        arrays: dict[str, NDArray[Any]] = {}
        for world, tasks in self._worlds.items():
            columns: Mapping[str, Any] = getattr(tasks, "columns", {})
            if len(tasks) and name not in columns:
                return None
            arrays |= {world: np.asarray(columns[name])} if len(tasks) else {}
        if len(arrays) < 2:
            return next(iter(arrays.values()), None)
        shape = next(iter(arrays.values())).shape[1:]
        merged = np.empty((self._length, *shape), np.result_type(*arrays.values()))
        ends = [*self._begins[1:], self._length]
        for begin, end, (first, names) in zip(self._begins, ends, self._turns, strict=True):
            for offset, world in enumerate(names):
                rows = (end - begin) // len(names)
                merged[begin + offset : end : len(names)] = arrays[world][first : first + rows]
        return merged


class Pool:
    """The tasks of a run by row, with their statistics. Row numbers never change.

    Columns are read on first use and tasks only when chosen, so a pool of ten million generated tasks is possible. The
    sequence that `Environment.tasks` returns may have `columns`, a table of arrays with a value or a vector for each
    task (`domain`: its name). Without it `domain` visits every task, and so do the statistics, which need the ids.

    Args:
        tasks: each with the name of its world.
        statistics: the task table of the run; the last row of a task counts. None: no task was attempted yet.

    Example:
        >>> from agentrl_core.env import Task
        >>> from agentrl_core.select import Pool
        >>> pool = Pool([("world", Task(str(number), "?", "sums", None)) for number in range(3)])
        >>> pool.column("attempts").tolist(), pool.domains
        ([0, 0, 0], ['sums'])
    """

    def __init__(self, tasks: Sequence[tuple[str, Task]], statistics: Table | None = None) -> None:
        self._tasks = tasks
        self._statistics = statistics
        self._columns: dict[str, NDArray[Any]] = {}
        self._domains: list[str] | None = None

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self._tasks)

    @property
    def domains(self) -> list[str]:
        """Names of the domains, by the codes of column `domain`."""
        if self._domains is None:
            self._read_domains()
        return self._domains or []

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of the pool, one value per task.

        Args:
            name: `attempts`, `successes`, `uses`, `last_version` (-1: never), `domain` (a code), or one of the
                environment's own columns.

        Raises:
            NotFoundError: the column does not exist.
            InvalidInputError: the environment's column does not have one value per task.
        """
        if name in self._columns:
            return self._columns[name]
        if name == "domain":
            self._read_domains()
        elif name in _FACTS:
            self._read_facts()
        else:
            values = self._tasks.column(name) if isinstance(self._tasks, MixedTasks) else None
            if values is None:
                known = ", ".join([*_FACTS, "domain"])
                raise NotFoundError(
                    f"the pool has no column {name!r}, only {known}; add it with Collector.annotate_tasks({name!r}, "
                    "values), or in `columns` of the sequence that Environment.tasks returns"
                )
            if len(values) != len(self):
                raise InvalidInputError(
                    f"column {name!r} has {len(values)} values for {len(self)} tasks; give one value for each task"
                )
            self._columns[name] = values
        return self._columns[name]

    def _read_domains(self) -> None:
        domains = self._tasks.column("domain") if isinstance(self._tasks, MixedTasks) else None
        if domains is not None:
            names, first, codes = np.unique(domains, return_index=True, return_inverse=True)
            order = np.argsort(first)
            places = np.empty(len(order), np.int32)
            places[order] = np.arange(len(order))
            self._domains = [str(name) for name in names[order]]
            self._columns["domain"] = places[codes]
            return
        each = [task.domain for _, task in self._tasks]
        self._domains = list(dict.fromkeys(each))
        code = {domain: place for place, domain in enumerate(self._domains)}
        self._columns["domain"] = np.array([code[domain] for domain in each], np.int32)

    def _read_facts(self) -> None:
        columns = {name: np.full(len(self), unknown, np.int64) for name, unknown in _FACTS.items()}
        if self._statistics is not None and len(ids := self._statistics.column("task_id")):
            last = {task_id: place for place, task_id in enumerate(ids)}
            # If the environment returns a task several times, each of its rows has its statistics.
            places = np.array([last.get(task.task_id, -1) for _, task in self._tasks], np.int64)
            known = np.flatnonzero(places >= 0)
            for name, column in columns.items():
                values = [_FACTS[name] if value is None else value for value in self._statistics.column(name)]
                column[known] = np.array(values, np.int64)[places[known]]
        self._columns |= columns

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the ids of some tasks."""
        return [self._tasks[row][1].task_id for row in rows.tolist()]

    def tasks(self, rows: NDArray[np.int64]) -> list[tuple[str, Task]]:
        """Return some tasks, each with the name of its world."""
        return [self._tasks[row] for row in rows.tolist()]
