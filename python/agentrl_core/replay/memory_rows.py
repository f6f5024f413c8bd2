"""Rows of a memory: references to stored trajectories, without tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.state import State

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_TYPES = {
    "trajectory_id": np.int64,
    "group_id": np.int64,
    "task": np.int64,
    "iteration": np.int64,
    "version": np.int64,
    "score": np.float64,
    "priority": np.float64,
    "uses": np.int32,
    "drawn_last": np.int64,
}
_COLUMNS = "columns"


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """Rows of a memory, one per trajectory, in the order in which they were added.

    Attributes:
        trajectory_id: id in the store.
        group_id: the group of its rollout.
        task: hash of its task.
        iteration: iteration in which it ended.
        version: the oldest policy version among its actions; -1: unknown.
        score: its score when it was added.
        priority: weight for sampling.
        uses: how often it was drawn again.
        drawn_last: the last iteration that drew it again; -1: none.
        columns: further numbers by name.
    """

    trajectory_id: NDArray[np.int64]
    group_id: NDArray[np.int64]
    task: NDArray[np.int64]
    iteration: NDArray[np.int64]
    version: NDArray[np.int64]
    score: NDArray[np.float64]
    priority: NDArray[np.float64]
    uses: NDArray[np.int32]
    drawn_last: NDArray[np.int64]
    columns: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def empty(cls, names: Iterable[str] = ()) -> Self:
        """Return an empty table of rows, with some further columns."""
        rows: dict[str, Any] = {name: np.zeros(0, kind) for name, kind in _TYPES.items()}
        return cls(**rows, columns={name: np.zeros(0) for name in names})

    @classmethod
    def of(cls, batch: Batch, iteration: int, names: Iterable[str] = ()) -> Self:
        """Return rows for the draws of a batch, each trajectory once, by its first draw."""
        ids = np.asarray(batch.column("trajectory_id", "draw"))
        _, rows = np.unique(ids, return_index=True)
        rows = np.sort(rows)
        version = policy_versions(batch, "min_policy_version")[rows]
        score = _column(batch, "score")[rows]
        tasks = task_hashes(batch)
        count = len(rows)
        return cls(
            trajectory_id=ids[rows],
            group_id=np.asarray(batch.column("group_id", "draw"))[rows],
            task=tasks[rows],
            iteration=np.full(count, iteration, np.int64),
            version=np.where(np.isfinite(version), version, -1).astype(np.int64),
            score=score,
            priority=np.ones(count),
            uses=np.zeros(count, np.int32),
            drawn_last=np.full(count, -1, np.int64),
            columns={name: _column(batch, name)[rows] for name in names},
        )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.trajectory_id)

    def take(self, rows: NDArray[Any]) -> Self:
        """Return some rows, by index or mask, in the given order."""
        arrays = {name: getattr(self, name)[rows] for name in _TYPES}
        return replace(self, **arrays, columns={name: values[rows] for name, values in self.columns.items()})

    def plus(self, other: MemoryRows) -> Self:
        """Return these rows followed by others, with the same columns."""
        arrays = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _TYPES}
        columns = {name: np.concatenate([values, other.columns[name]]) for name, values in self.columns.items()}
        return replace(self, **arrays, columns=columns)

    def values(self, name: str) -> NDArray[np.float64]:
        """Return a column by name as numbers."""
        return self.columns[name] if name in self.columns else np.asarray(getattr(self, name), np.float64)

    def to_state(self) -> State:
        """Return the rows as a table of arrays."""
        arrays = {column.name: getattr(self, column.name) for column in fields(self) if column.name != _COLUMNS}
        return {**arrays, _COLUMNS: dict(self.columns)}

    @classmethod
    def from_state(cls, state: State, names: Iterable[str] | None = None) -> Self:
        """Read rows that `to_state` wrote, with some columns; missing values are NaN. None: all stored columns."""
        rows = {name: np.asarray(state[name], kind) for name, kind in _TYPES.items()}
        unknown = np.full(len(rows["trajectory_id"]), np.nan)
        columns = {name: np.asarray(values) for name, values in state.get(_COLUMNS, {}).items()}
        known = {name: values for name, values in columns.items() if len(values) == len(unknown)}
        return cls(**rows, columns={name: known.get(name, unknown) for name in (known if names is None else names)})


def task_hashes(batch: Batch) -> NDArray[np.int64]:
    """Return a hash of the task of each draw, equal in every process."""
    if not batch.num_draws:
        return np.zeros(0, np.int64)
    names, place = np.unique(batch.texts("task_id", "draw"), return_inverse=True)
    hashes = [int.from_bytes(hashlib.blake2b(str(name).encode(), digest_size=8).digest()) >> 1 for name in names]
    return np.asarray(hashes, np.int64)[place]


def policy_versions(batch: Batch, name: str) -> NDArray[np.float64]:
    """Return the oldest or newest policy version among the actions of each draw; NaN if unknown, as for data sets."""
    table = batch.trajectories
    ids, versions = np.asarray(table.column("trajectory_id")), np.asarray(table.column(name), np.float64)
    order = np.argsort(ids, kind="stable")
    drawn_ids = np.asarray(batch.column("trajectory_id", "draw"))
    drawn_versions: NDArray[np.float64] = versions[order[np.searchsorted(ids, drawn_ids, sorter=order)]]
    return drawn_versions


def _column(batch: Batch, name: str) -> NDArray[np.float64]:
    known = batch.has(name, "draw")
    return np.asarray(batch.column(name, "draw"), np.float64) if known else np.full(batch.num_draws, np.nan)
