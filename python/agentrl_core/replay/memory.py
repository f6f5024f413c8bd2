"""Memories of trajectories: capacity, age and sampling order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import Where, column_name, option
from agentrl_core.component.state import IterationRecord, State, Stateful
from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import keys
from agentrl_core.operators.row_selection import top_rows
from agentrl_core.replay.memory_rows import MemoryRows

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_FRESH = CODES["source"].index("fresh")

Order = Literal["uniform", "oldest", "newest", "best", "proportional", "rank"]
"""Order in which rows of a memory are drawn without repetition."""


@dataclass(frozen=True)
class Memory(Stateful):
    """Remember trajectories by reference, and sample them again.

    When an iteration closes, its finished trajectories that match `where` are appended. Then rows that are too old are
    removed, then the oldest of each task beyond `per_task`, then the oldest beyond `capacity`. A memory of groups adds
    and removes whole groups (those with a row that matches `where`). Rows can be drawn from the next iteration on.

    Global FIFO: `Memory(capacity=512)`. Per task: `Memory(per_task=8)`; a single slot: `per_task=1`. By iteration:
    `Memory(max_age=2)`, or a queue with a delay of `min_age` iterations: `Memory(min_age=64, max_age=64)`.

    Args:
        capacity: largest number of rows (or groups); None: unlimited.
        per_task: largest number of rows (or groups) of one task; None: unlimited.
        unit: what is stored, counted and drawn as a whole: a `trajectory` or a `group`.
        where: trajectories to add, by their columns at the close; None: all with a score.
        max_age: older rows, in iterations, are removed; None: never.
        min_age: younger rows, in iterations, are not drawn; 1: rows of the iteration before are.
        max_versions: rows are not drawn if their oldest action is more policy versions behind; None: no limit.
        order: order of drawing: `uniform`, `oldest` (first in, first out), `newest` (last in, first out), `best` (the
            largest priority), or at random without repetition in proportion to priority^exponent (`proportional`) or to
            rank^-exponent (`rank`), arXiv:1511.05952.
        priority: the draw column of priorities, by its absolute value plus `floor`; empty: all are equal. It is updated
            when a row is drawn again. A row without a value gets the largest priority.
        exponent: see `order`, at least 0.
        floor: see `priority`, above 0.
        keep: draw columns to store besides the score.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core import replay
        >>> from agentrl_core.component import Where
        >>> replay.Memory(per_task=8, where=Where(column="outcome", above=0.1)).needs
        (draw('outcome'),)
    """

    phase: ClassVar[str] = "replay"

    capacity: int | None = option(None, at_least=1)
    per_task: int | None = option(None, at_least=1)
    unit: Literal["trajectory", "group"] = "trajectory"
    where: Where | None = None
    max_age: int | None = option(None, at_least=1)
    min_age: int = option(1, at_least=1)
    max_versions: int | None = option(None, at_least=0)
    order: Order = "uniform"
    priority: str = column_name("", level="draw", optional=True)
    exponent: float = option(1.0, at_least=0)
    floor: float = option(1e-6, above=0)
    keep: tuple[str, ...] = ()

    def check_options(self) -> None:
        """Require max_age >= min_age, so that drawn rows still exist."""
        fits = self.max_age is None or self.min_age <= self.max_age
        self.require(fits, "min_age", f"give at most max_age={self.max_age}, after which rows are removed")

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """Names of the stored columns: `keep`."""
        return self.keep

    def initial_state(self) -> State:
        """Return the empty state."""
        return MemoryRows.empty(self.kept_columns).to_state()

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the rows after an iteration."""
        remembered_rows = self._used(MemoryRows.from_state(state, self.kept_columns), closed)
        fresh = self._finished_rows(closed)
        fresh = replace(
            fresh, priority=self._priorities(fresh, closed, float(remembered_rows.priority.max(initial=1.0)))
        )
        remembered_rows = remembered_rows.plus(fresh.take(~np.isin(fresh.trajectory_id, remembered_rows.trajectory_id)))
        if self.max_age is not None:
            remembered_rows = remembered_rows.take(remembered_rows.iteration > closed.iteration - self.max_age)
        if self.per_task is not None:
            remembered_rows = remembered_rows.take(self._newest(remembered_rows, remembered_rows.task, self.per_task))
        if self.capacity is not None:
            remembered_rows = remembered_rows.take(
                self._newest(remembered_rows, np.zeros(len(remembered_rows), np.int64), self.capacity)
            )
        return remembered_rows.to_state()

    def drawable(self, state: State, iteration: int, versions: int | None = None) -> MemoryRows:
        """Return the rows that an iteration may draw; `versions` is the newest policy version."""
        remembered_rows = MemoryRows.from_state(state, self.kept_columns)
        fits = remembered_rows.iteration <= iteration - self.min_age
        if self.max_versions is not None and versions is not None:
            fits &= (remembered_rows.version >= 0) & (remembered_rows.version >= versions - self.max_versions)
        return remembered_rows.take(fits)

    def draw(self, kept: MemoryRows, count: int, key: int) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """Draw up to `count` trajectories or groups by `order`; return rows, and probabilities if that is `uniform`.

        No row is drawn twice; if there are fewer, all are drawn. Rows are in the order of drawing.
        """
        if not count or not len(kept):
            return np.zeros(0, np.int64), None
        units = self.units(kept)
        first = np.unique(units, return_index=True)[1]
        order = np.argsort(self._ranks(kept.take(first), key), kind="stable")[:count]
        chance = np.full(len(order), min(1.0, count / len(first))) if self.order == "uniform" else None
        place = np.full(len(first), -1, np.int64)
        place[order] = np.arange(len(order))
        row_places = place[units]
        rows = np.flatnonzero(row_places >= 0)
        rows = rows[np.argsort(row_places[rows], kind="stable")]
        return rows, None if chance is None else chance[row_places[rows]]

    def units(self, kept: MemoryRows) -> NDArray[np.int64]:
        """Number what is drawn as a whole (trajectories or groups), by first appearance."""
        ids = kept.trajectory_id if self.unit == "trajectory" else kept.group_id
        return keys.dense(ids).astype(np.int64)

    def _ranks(self, kept: MemoryRows, key: int) -> NDArray[np.float64]:
        """Return a number for each row by `order`; the row with the smallest number is drawn first."""
        ids = kept.trajectory_id if self.unit == "trajectory" else kept.group_id
        match self.order:
            case "oldest":
                return np.arange(len(kept), dtype=np.float64)
            case "newest":
                return -np.arange(len(kept), dtype=np.float64)
            case "best":
                return -kept.priority
            case "uniform":
                return _core.replay.race(np.ascontiguousarray(ids), key=key)
            case "proportional":
                weights = kept.priority
            case "rank":
                weights = _core.replay.rank_weights(np.ascontiguousarray(kept.priority))
        # Logarithm of an arrival time at rate weight^exponent: it cannot overflow or underflow.
        arrivals = _core.replay.race(np.ascontiguousarray(ids), key=key)
        return np.asarray(np.log(arrivals) - self.exponent * np.log(weights))

    def _finished_rows(self, closed: IterationRecord) -> MemoryRows:
        """Return the rows to add: finished trajectories that match `where` or have a score, or the groups of these."""
        new = np.flatnonzero(np.asarray(closed.finished.column("source", "draw")) == _FRESH)
        ended = closed.finished.select_draws(new)
        fresh = MemoryRows.of(ended, closed.iteration, self.kept_columns)
        for name in self.kept_columns:
            known = matched(closed.batch, name, fresh.trajectory_id)  # includes columns computed after scoring
            fresh.columns[name][:] = np.where(np.isfinite(known), known, fresh.columns[name])
        fits = np.isfinite(fresh.score)
        if self.where is not None:
            ids = np.asarray(ended.column("trajectory_id", "draw"))
            known, at_end = (matched(batch, self.where.column, ids) for batch in (closed.batch, ended))
            admitted = self.where.holds(ended, np.where(np.isfinite(known), known, at_end))
            fits = np.isin(fresh.trajectory_id, ids[admitted])
        if self.unit == "group":
            fits = np.isin(fresh.group_id, fresh.group_id[fits])
        return fresh.take(fits)

    def _priorities(self, kept: MemoryRows, closed: IterationRecord, otherwise: float) -> NDArray[np.float64]:
        if not self.priority:
            return np.ones(len(kept))
        values = matched(closed.batch, self.priority, kept.trajectory_id)
        if np.isinf(values).any():
            row = int(np.flatnonzero(np.isinf(values))[0])
            raise InvalidInputError(
                f"{self.title()}: column {self.priority!r} of trajectory {kept.trajectory_id[row]} is {values[row]}, "
                "but a priority must be finite; name another column, or bound this one"
            )
        return np.where(np.isfinite(values), np.abs(values) + self.floor, otherwise)

    def _used(self, kept: MemoryRows, closed: IterationRecord) -> MemoryRows:
        """Update uses and priorities of rows that the iteration drew again."""
        drawn_ids, counts = np.unique(closed.batch.column("trajectory_id", "draw"), return_counts=True)
        drawn_again = np.isin(kept.trajectory_id, drawn_ids)
        uses = kept.uses.copy()
        uses[drawn_again] += counts[np.searchsorted(drawn_ids, kept.trajectory_id[drawn_again])].astype(np.int32)
        renewed = self._priorities(kept, closed, np.nan) if self.priority else kept.priority
        return replace(
            kept,
            uses=uses,
            drawn_last=np.where(drawn_again, closed.iteration, kept.drawn_last),
            priority=np.where(drawn_again & np.isfinite(renewed), renewed, kept.priority),
        )

    def _newest(self, kept: MemoryRows, within: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
        """Mark the rows of the `count` newest trajectories or groups for each value of `within`."""
        if not len(kept):
            return np.zeros(0, np.bool_)
        units = self.units(kept)
        first = np.unique(units, return_index=True)[1]
        chosen = top_rows(np.arange(len(first), dtype=np.float64), keys.dense(within[first]), count=count)
        mask: NDArray[np.bool_] = chosen[units]
        return mask


def matched(batch: Batch, name: str, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a draw column by trajectory, from its first draw; NaN if the draw or column is missing."""
    values = np.full(len(ids), np.nan)
    if not batch.num_draws or not batch.has(name, "draw"):
        return values
    known, first = np.unique(np.asarray(batch.column("trajectory_id", "draw")), return_index=True)
    place = np.searchsorted(known, ids).clip(max=len(known) - 1)
    is_known = known[place] == ids
    values[is_known] = np.asarray(batch.column(name, "draw"), np.float64)[first[place[is_known]]]
    return values
