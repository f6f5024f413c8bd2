"""Memories: which trajectories are remembered, how long, and in which order they are drawn again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import Where, column_name, option
from agentrl_core.component.state import IterationRecord, State, Stateful
from agentrl_core.data.codes import CODES
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import keys
from agentrl_core.replay.memory_rows import MemoryRows
from agentrl_core.weight.select import top_rows

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_FRESH = CODES["source"].index("fresh")

Order = Literal["uniform", "oldest", "newest", "best", "proportional", "rank"]
"""How rows of a memory are drawn, each at most once: at random, by age, by priority, or at random by priority."""


@dataclass(frozen=True)
class Memory(Stateful):
    """Remembers trajectories by reference: which, how many, how long, and in which order they are drawn again.

    After an iteration is closed, the trajectories that ended in it and lie in `where` are kept behind those there are;
    then rows that are too old are forgotten, then all but the newest of each task beyond `per_task`, then all but the
    newest beyond `capacity`. A memory of groups keeps and forgets whole groups (those of which a row lies in `where`).
    Drawing begins with the next iteration: draw first, then append.

    Global FIFO: `Memory(capacity=512)`. Per task: `Memory(per_task=8)`; a single slot: `per_task=1`. By iteration:
    `Memory(max_age=2)`, or a queue that gives what is `min_age` iterations old: `Memory(min_age=64, max_age=64)`.

    Args:
        capacity: most rows (or groups) of all; None: any number.
        per_task: most rows (or groups) of one task; None: any number.
        unit: what is kept, counted and drawn as one: a `trajectory`, or a `group` intact.
        where: which trajectories are kept, by what is known at its close; None: all that have a score.
        max_age: rows that are older, in iterations, are forgotten; None: never.
        min_age: rows that are younger, in iterations, are not drawn; 1: of the iteration before.
        max_versions: rows whose oldest action is more policy versions old than the newest are not drawn; None: all are.
        order: how rows are drawn: `uniform`, `oldest` (first in, first out), `newest` (last in, first out), `best` (the
            largest priority), or at random without repetition in proportion to priority^exponent (`proportional`) or to
            rank^-exponent (`rank`), arXiv:1511.05952.
        priority: the draw column that is the priority, by its absolute value plus `floor`; empty: all are equal. Of a
            row that is drawn again it is renewed; one that is not in the column has the largest there is.
        exponent: see `order`, at least 0.
        floor: see `priority`, above 0.
        keep: draw columns that are remembered, joined by commas, beside the score.

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
    keep: str = ""

    def check_options(self) -> None:
        """What is drawn must still be there."""
        fits = self.max_age is None or self.min_age <= self.max_age
        self.require(fits, "min_age", f"rows are forgotten after max_age={self.max_age} iterations")

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """The columns that are remembered."""
        return tuple(name.strip() for name in self.keep.split(",") if name.strip())

    def initial_state(self) -> State:
        """Nothing is remembered."""
        return MemoryRows.empty(self.kept_columns).to_state()

    def next(self, state: State, closed: IterationRecord) -> State:
        """What is remembered after an iteration."""
        kept = self._used(MemoryRows.from_state(state, self.kept_columns), closed)
        fresh = self._worth(closed)
        fresh = replace(fresh, priority=self._priorities(fresh, closed, float(kept.priority.max(initial=1.0))))
        kept = kept.plus(fresh.take(~np.isin(fresh.trajectory_id, kept.trajectory_id)))
        if self.max_age is not None:
            kept = kept.take(kept.iteration > closed.iteration - self.max_age)
        if self.per_task is not None:
            kept = kept.take(self._newest(kept, kept.task, self.per_task))
        if self.capacity is not None:
            kept = kept.take(self._newest(kept, np.zeros(len(kept), np.int64), self.capacity))
        return kept.to_state()

    def drawable(self, state: State, iteration: int, versions: int | None = None) -> MemoryRows:
        """The rows that an iteration may draw; `versions`: the newest policy version there is."""
        kept = MemoryRows.from_state(state, self.kept_columns)
        fits = kept.iteration <= iteration - self.min_age
        if self.max_versions is not None and versions is not None:
            fits &= (kept.version >= 0) & (kept.version >= versions - self.max_versions)
        return kept.take(fits)

    def draw(self, kept: MemoryRows, count: int, key: int) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """Rows for `count` draws (of trajectories, or of whole groups) and, drawn uniformly, how probable each was.

        No row is drawn twice; where there are fewer, all are. Rows come in the order in which they are drawn.
        """
        if not count or not len(kept):
            return np.zeros(0, np.int64), None
        units = self.units(kept)
        first = np.unique(units, return_index=True)[1]
        order = np.argsort(self._ranks(kept.take(first), key), kind="stable")[:count]
        chance = np.full(len(order), min(1.0, count / len(first))) if self.order == "uniform" else None
        place = np.full(len(first), -1, np.int64)
        place[order] = np.arange(len(order))
        drawn = place[units]
        rows = np.flatnonzero(drawn >= 0)
        rows = rows[np.argsort(drawn[rows], kind="stable")]
        return rows, None if chance is None else chance[drawn[rows]]

    def units(self, kept: MemoryRows) -> NDArray[np.int64]:
        """What is drawn as one, numbered by first appearance."""
        ids = kept.trajectory_id if self.unit == "trajectory" else kept.group_id
        return keys.dense(ids).astype(np.int64)

    def _ranks(self, kept: MemoryRows, key: int) -> NDArray[np.float64]:
        """What is drawn first has the smallest number."""
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
        # The logarithm of an arrival at the rate weight^exponent: no power is too large or too small for it.
        arrivals = _core.replay.race(np.ascontiguousarray(ids), key=key)
        return np.asarray(np.log(arrivals) - self.exponent * np.log(weights))

    def _worth(self, closed: IterationRecord) -> MemoryRows:
        """What ended in the iteration and is kept."""
        new = np.flatnonzero(np.asarray(closed.finished.column("source", "draw")) == _FRESH)
        ended = closed.finished.select_draws(new)
        fresh = MemoryRows.of(ended, closed.iteration, self.kept_columns)
        for name in self.kept_columns:
            known = matched(closed.batch, name, fresh.trajectory_id)  # also what was computed after scoring
            fresh.columns[name][:] = np.where(np.isfinite(known), known, fresh.columns[name])
        fits = np.isfinite(fresh.score)
        if self.where is not None:
            ids = np.asarray(ended.column("trajectory_id", "draw"))
            known, said = (matched(batch, self.where.column, ids) for batch in (closed.batch, ended))
            held = self.where.holds(ended, np.where(np.isfinite(known), known, said))
            fits = np.isin(fresh.trajectory_id, ids[held])
        if self.unit == "group":
            fits = np.isin(fresh.group_id, fresh.group_id[fits])
        return fresh.take(fits)

    def _priorities(self, kept: MemoryRows, closed: IterationRecord, otherwise: float) -> NDArray[np.float64]:
        if not self.priority:
            return np.ones(len(kept))
        found = matched(closed.batch, self.priority, kept.trajectory_id)
        if np.isinf(found).any():
            row = int(np.flatnonzero(np.isinf(found))[0])
            raise InvalidInputError(
                f"{self.title()}: column {self.priority!r} of trajectory {kept.trajectory_id[row]} is {found[row]}, "
                "which is no priority; name a column of finite numbers, or bound this one where it is made"
            )
        return np.where(np.isfinite(found), np.abs(found) + self.floor, otherwise)

    def _used(self, kept: MemoryRows, closed: IterationRecord) -> MemoryRows:
        """The rows with what the iteration drew again."""
        drawn, counts = np.unique(closed.batch.column("trajectory_id", "draw"), return_counts=True)
        again = np.isin(kept.trajectory_id, drawn)
        uses = kept.uses.copy()
        uses[again] += counts[np.searchsorted(drawn, kept.trajectory_id[again])].astype(np.int32)
        renewed = self._priorities(kept, closed, np.nan) if self.priority else kept.priority
        return replace(
            kept,
            uses=uses,
            drawn_last=np.where(again, closed.iteration, kept.drawn_last),
            priority=np.where(again & np.isfinite(renewed), renewed, kept.priority),
        )

    def _newest(self, kept: MemoryRows, within: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
        """The rows of the newest trajectories or groups, `count` of each of some parts."""
        if not len(kept):
            return np.zeros(0, np.bool_)
        units = self.units(kept)
        first = np.unique(units, return_index=True)[1]
        chosen = top_rows(np.arange(len(first), dtype=np.float64), keys.dense(within[first]), count=count)
        mask: NDArray[np.bool_] = chosen[units]
        return mask


def matched(batch: Batch, name: str, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """A draw column by trajectory, by the first draw of each; NaN where there is no such draw or column."""
    values = np.full(len(ids), np.nan)
    if not batch.num_draws or not batch.has(name, "draw"):
        return values
    known, first = np.unique(np.asarray(batch.column("trajectory_id", "draw")), return_index=True)
    place = np.searchsorted(known, ids).clip(max=len(known) - 1)
    found = known[place] == ids
    values[found] = np.asarray(batch.column(name, "draw"), np.float64)[first[place[found]]]
    return values
