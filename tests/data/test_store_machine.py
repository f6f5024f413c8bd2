"""Any order of operations on a store, beside a map in memory of the same data."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pytest
from forests import frames
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentrl_core import Batch, Forest, Store
from agentrl_core.exceptions import InvalidInputError, NotFoundError

KEYS = {"nodes": "node_id", "trajectories": "trajectory_id", "draws": "draw_id"}
ROWS = ("nodes", "steps", "trajectories", "draws", "decisions")


@dataclass
class Append:
    """One write of rows."""

    iteration: int
    partial: bool
    batch: Batch
    rows: dict[str, pl.DataFrame]
    """New rows of the write."""
    replayed: list[int]


@dataclass
class Memory:
    """Data given to a store."""

    appends: list[Append] = field(default_factory=list)
    closed: list[tuple[Batch, Any]] = field(default_factory=list)
    """Batches with computed columns, and states."""
    dropped: int = 0
    kept: dict[str, pl.DataFrame] = field(default_factory=dict)
    """Older rows that a drop kept."""
    blobs: dict[bytes, bytes] = field(default_factory=dict)

    def table(self, name: str) -> pl.DataFrame:
        parts = [*([self.kept[name]] if self.kept else []), *(append.rows[name] for append in self.appends)]
        return pl.concat(parts) if parts else pl.DataFrame()

    def of(self, iteration: int) -> list[Append]:
        return [append for append in self.appends if append.iteration == iteration and not append.partial]


def tables_equal(mine: pl.DataFrame, other: pl.DataFrame) -> bool:
    return len(mine) == len(other) == 0 or mine.equals(other, null_equal=True)


class Machine(RuleBasedStateMachine):
    """One run, one writer, and one reader that may lag."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store.open(self.folder)
        self.memory = Memory()
        self.seed = self.writes = 0
        self.next = dict.fromkeys(KEYS, 0)
        self.reader: Store | None = None
        self.seen: dict[str, pl.DataFrame] = {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.store.close()
            shutil.rmtree(self.folder)

    def grown(self, members: int, turns: int, *, rewritten: bool, blob: bytes | None) -> Batch:
        """Some rollouts of the open iteration."""
        self.seed += 1
        forest = Forest(iteration=self.store.iteration, seed=self.seed, reward_components=["answer"])
        forest.add_group(0, f"task {self.seed % 3}")
        for member in range(members):
            path = forest.start(0, member)
            blobs = None if blob is None else [forest.add_blob(blob)]
            forest.append(path, [1, 2, self.seed], kind="prompt", blobs=blobs)
            for turn in range(turns):
                forest.append(path, [3, turn, member], kind="action", logprobs=[-0.5, -0.25, -1.0])
                forest.step(path, reward=1.0, rewards=[float(turn)])
                if rewritten:
                    forest.rewrite(path, [1, 2, 7, turn])
                else:
                    forest.append(path, [4], kind="observation")
            forest.append(path, [5], kind="action", logprobs=[-0.125])
            forest.finish(path, reward=float(member))
        if blob is not None:
            self.memory.blobs[forest.add_blob(blob)] = blob
        return forest.freeze()

    @rule(
        members=st.integers(1, 2),
        turns=st.integers(0, 2),
        rewritten=st.booleans(),
        partial=st.booleans(),
        blob=st.none() | st.binary(min_size=1, max_size=3),
        replay=st.lists(st.integers(0, 50), max_size=2),
    )
    def append(
        self, members: int, turns: int, rewritten: bool, partial: bool, blob: bytes | None, replay: list[int]
    ) -> None:
        iteration = self.store.iteration
        batch = self.grown(members, turns, rewritten=rewritten, blob=blob)
        rows = self.memory.table("trajectories")
        known = rows["trajectory_id"].to_list() if len(rows) else []
        ids = sorted({known[index % len(known)] for index in replay if known})
        if partial:
            batch, ids = batch.select_draws([]), []
        elif ids:
            batch = Batch.concat([batch, self.store.trajectory_batch(ids)])
            # They vote in the new group, so one iteration can draw them several times.
            group = pl.DataFrame(batch.trajectories)["group_id"][-1]
            batch = batch.with_draws(ids, group_ids=[group] * len(ids), source="replay")
        batch = self.store.rebase(batch)
        self.writes += 1
        assert self.store.append(batch, iteration=iteration, partial=partial) == self.writes
        rows = frames(batch)
        rows["steps"] = rows["steps"].filter(pl.col("trajectory_id") >= self.next["trajectories"])
        for name, key in KEYS.items():
            rows[name] = rows[name].filter(pl.col(key) >= self.next[name])
            self.next[name] += len(rows[name])
        self.memory.appends.append(Append(iteration, partial, batch, rows, ids))

    @precondition(lambda self: self.memory.of(self.store.iteration))
    @rule(value=st.floats(-1, 1) | st.integers())
    def close_iteration(self, value: float) -> None:
        iteration = self.store.iteration
        batch = self.store.batch(iteration)
        batch = batch.with_columns("draw", advantage=[0.5] * batch.num_draws)
        self.writes += 1
        assert self.store.close_iteration(batch, {"value": value}) == self.writes
        self.memory.closed.append((batch, {"value": value}))
        assert (self.store.iteration, self.store.state) == (iteration + 1, {"value": value})

    @rule()
    def flush(self) -> None:
        assert self.store.flush() == self.store.sequence

    @rule()
    def reopen(self) -> None:
        sequence = self.store.flush()
        self.store.close()
        self.store = Store.open(self.folder)
        assert self.store.sequence == sequence

    @rule()
    def look(self) -> None:
        """A reader opens, and keeps its snapshot."""
        self.store.flush()
        self.reader = Store.open(self.folder, read_only=True)
        self.seen = {name: pl.DataFrame(getattr(self.store, name)) for name in ROWS}

    @precondition(lambda self: self.reader is not None)
    @rule()
    def refresh(self) -> None:
        assert self.reader is not None
        self.store.flush()
        self.reader.refresh()
        self.seen = {name: pl.DataFrame(getattr(self.store, name)) for name in ROWS}
        assert self.reader.sequence == self.store.sequence

    @precondition(lambda self: self.reader is not None)
    @rule(name=st.sampled_from(ROWS))
    def read(self, name: str) -> None:
        assert self.reader is not None
        assert tables_equal(pl.DataFrame(getattr(self.reader, name)), self.seen[name])

    @rule()
    def compact(self) -> None:
        assert self.store.compact() >= 0

    @precondition(lambda self: len(self.memory.closed) > self.memory.dropped)
    @rule(rewrite=st.booleans())
    def drop(self, rewrite: bool) -> None:
        first = self.memory.dropped + 1
        remaining = [append for append in self.memory.appends if append.iteration >= first]
        older = {name: self.memory.table(name) for name in ROWS}
        for name, rows in older.items():
            older[name] = rows.head(len(rows) - sum(len(append.rows[name]) for append in remaining))
        needed = {draw for append in remaining for draw in append.replayed}
        needed &= set(older["trajectories"]["trajectory_id"].to_list())
        if needed and not rewrite:
            with pytest.raises(InvalidInputError, match="which is drawn again"):
                self.store.drop_before(first)
            return
        self.store.drop_before(first, rewrite=rewrite)
        self.memory.appends, self.memory.dropped = remaining, first
        # Trajectories that are drawn again stay, with their steps and the nodes of all of their contexts.
        kept_rows = {name: rows.head(0) for name, rows in older.items()}
        steps, trajectories = (
            older[name].filter(pl.col("trajectory_id").is_in(list(needed))) for name in ("steps", "trajectories")
        )
        nodes, ends = older["nodes"], {*trajectories["leaf_node_id"].to_list(), *steps["node_id"].to_list()}
        above = dict(zip(nodes["node_id"].to_list(), nodes["parent_id"].to_list(), strict=True))
        used = set()
        while ends:
            used |= ends
            ends = {above[node] for node in ends} - {None}
        nodes = nodes.filter(pl.col("node_id").is_in(list(used)))
        self.memory.kept = {**kept_rows, "nodes": nodes, "trajectories": trajectories, "steps": steps}
        self.reader = None

    @rule(missing=st.binary(min_size=32, max_size=32))
    def read_blobs(self, missing: bytes) -> None:
        nodes = self.memory.table("nodes")
        used = set(nodes["blobs"].explode().drop_nulls().to_list()) if len(nodes) else set()
        for name in used:
            assert self.store.blob(name) == self.memory.blobs[name]
        with pytest.raises(NotFoundError, match="the store has no blob"):
            self.store.blob(missing)

    @rule(name=st.sampled_from(ROWS))
    def tables_are_what_was_appended(self, name: str) -> None:
        stored = pl.DataFrame(getattr(self.store, name)).drop("created_us", strict=False)
        assert tables_equal(stored, self.memory.table(name))
        files = sorted((self.folder / name).glob("*.arrow"))
        assert (
            tables_equal(pl.scan_ipc(files).collect().drop("created_us", strict=False), stored)
            if files
            else not len(stored)
        )

    @rule(index=st.integers(0, 50))
    def batches_are_what_was_trained(self, index: int) -> None:
        iteration = index % (self.store.iteration + 1)
        if iteration < self.memory.dropped or not self.memory.of(iteration):
            assert not self.store.has_batch(iteration)
            with pytest.raises(NotFoundError, match="no training batch"):
                self.store.batch(iteration)
            return
        stored, appends = self.store.batch(iteration), self.memory.of(iteration)
        assert stored.reward_components == ["answer"]
        for level, name in [("token", "token"), ("step", "reward"), ("token", "position"), ("draw", "group_id")]:
            expected = [value for append in appends for value in append.batch.column(name, level).tolist()]
            np.testing.assert_array_equal(stored.column(name, level), expected)
        if iteration < len(self.memory.closed):
            closed = self.memory.closed[iteration][0]
            assert pl.DataFrame(stored.draw_columns).equals(pl.DataFrame(closed.draw_columns))

    @rule()
    def verify(self) -> None:
        assert self.store.verify() == []

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "folder"):
            assert self.store.iteration == len(self.memory.closed)
            assert self.store.state == (self.memory.closed[-1][1] if self.memory.closed else {})


TestStoreMachine = Machine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
