"""Store: the durable form of the data, a directory of Arrow files that stock tools read while training runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from numbers import Real
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _core, renames
from agentrl_core._core import Table
from agentrl_core._util.json_text import to_json
from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

# A forked worker must not hold the lock of a parent that is killed, nor one that its parent was just taking.
os.register_at_fork(
    before=_core.before_fork,
    after_in_parent=_core.after_fork_in_parent,
    after_in_child=_core.after_fork_in_child,
)


class Store:
    """A run on disk: sealed Arrow IPC files, a folder for each table, and a manifest that names those that count.

    `pl.scan_ipc("run/nodes/*.arrow")` reads whole files, and never a row that is not committed, or one twice. Files
    are never changed, and no name is used again; small ones are merged now and then, eight at a time. Stock tools that
    read a folder in that moment get an error, never a part of the rows: they read it again (`polars.scan` of this
    package does so by itself). A writer that is killed in that moment leaves a file `0-being-rewritten.arrow` that
    says so, which the next one removes.

    One process writes (the lock goes with it, also when it is killed while its forked workers live), any number read.
    What `flush`, `close_iteration` and `close` acknowledged survives a kill or a power cut. Other files may lie beside
    the tables (a recipe, checkpoints, notes): the store changes and removes only what has a name as it gives them.

    Example:
        >>> import tempfile
        >>> import agentrl_core as arl
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "a task")
        >>> path = forest.start(0, 0)
        >>> _ = forest.append(path, [1, 2], kind="prompt")
        >>> _ = forest.append(path, [3, 4], kind="action", logprobs=[-0.5, -0.25])
        >>> forest.step(path, reward=1.0)
        >>> forest.finish(path, reward=1.0)
        >>> folder = tempfile.mkdtemp()
        >>> with arl.Store.open(folder) as store:
        ...     batch = store.rebase(forest.freeze())
        ...     store.append(batch, iteration=0), store.flush()
        ...     store.close_iteration(batch.with_columns("draw", advantage=[0.5]), {"loss": 0.25})
        (1, 1)
        2
        >>> store = arl.Store.open(folder, read_only=True)
        >>> store.iteration, store.state, store.batch(0).column("advantage", "token").tolist()
        (1, {'loss': 0.25}, [0.5, 0.5])
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.Store) -> None:
        self._core = core

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        read_only: bool = False,
        sync: Literal["batch", "always", "never"] = "batch",
    ) -> Self:
        """Open a store, creating it if there is none. What a killed writer left unfinished is cleared away.

        Args:
            path: the directory, on a file system with locks (NFS: mounted with locking). What else lies in it stays.
            read_only: do not take the writer's lock; see the commits that are there now, until `refresh`.
            sync: when a write is durable. `batch`: appends are queued (up to 256 MB), `flush`, `close_iteration` and
                `close` make them durable in one commit; `always`: each call is durable when it returns; `never`: as
                `batch`, but left to the operating system, so that a killed process loses nothing that was flushed and a
                power cut can.

        Raises:
            StoreError: another process writes this store, this one has it open already, or the directory cannot be
                used.
            InvalidInputError: a folder of the store is a link to another place, where nothing is to be written.
            CorruptError: the manifest is damaged or a file is missing; the message names it.
            NotFoundError: `read_only` and there is no store.
            UnsupportedError: a newer version wrote it with features that this one lacks, or the file system has no
                locks.
        """
        return cls(_core.Store.open(path, read_only=read_only, sync=sync))

    @property
    def path(self) -> str:
        """The directory."""
        return str(self._core.path)

    @property
    def iteration(self) -> int:
        """Number of closed iterations: the one that a run goes on with."""
        return self._core.iteration

    @property
    def version(self) -> int:
        """Number of the last commit; 0 before the first."""
        return self._core.version

    @property
    def sequence(self) -> int:
        """Number of the last durable write: appends and closed iterations are counted from 1."""
        return self._core.sequence

    @property
    def state(self) -> dict[str, Any]:
        """What the last `close_iteration` left to go on from."""
        return renames.table().state(json.loads(self._core.state) or {})

    @property
    def nodes(self) -> Table:
        """Committed runs of tokens. Reading a table through its writer commits what is queued first."""
        return self._core.table("nodes")

    @property
    def steps(self) -> Table:
        """Committed turns."""
        return self._core.table("steps")

    @property
    def trajectories(self) -> Table:
        """Committed trajectories; `trajectory_batch` gives some of them as a batch."""
        return self._core.table("trajectories")

    @property
    def draws(self) -> Table:
        """Committed uses of trajectories."""
        return self._core.table("draws")

    @property
    def tasks(self) -> Table:
        """Task statistics, a row for each change: the last one of a task is what they are now.

        `agentrl_core.integrations.polars.scan(store).latest_tasks` has those rows alone.
        """
        return self._core.table("tasks")

    @property
    def decisions(self) -> Table:
        """What programs decided."""
        return self._core.table("decisions")

    @property
    def metrics(self) -> Table:
        """What was measured: `iteration` i64, `name` utf8, `value` f64, a row for each number of a closed iteration."""
        return renames.table().measured(self._core.metrics())

    @property
    def write_log(self) -> Table:
        """One row for each write: iteration, kind, rows by folder; of a closed iteration its state, its components."""
        return self._core.writes()

    def rollout_log(self, iteration: int) -> RolloutLog:
        """The journal of an iteration whose batch is not in the store yet, as a killed process left it, or empty.

        It is gone when the batch is committed (`append` without `partial`, and `flush`), or the iteration closed.

        Raises:
            InvalidInputError: the store is open for reading only, or has the batch of the iteration.
            StoreError: the file cannot be read.
            UnsupportedError: a newer version wrote it.
        """
        return RolloutLog(self._core.journal(iteration))

    def files(self, table: str) -> list[tuple[Path, int, dict[str, tuple[int, int]]]]:
        """The Arrow files of a table, in the order of their rows: what a scanner reads for this snapshot.

        Of each how many rows are committed, and the bounds of their `iteration`, `group_id` and ids, where known.

        Args:
            table: one of the tables, or `metrics`, `states`, `draw_columns`, `step_columns`, `node_columns`.

        Raises:
            NotFoundError: there is no such table.
        """
        return self._core.files(table)

    def rebase(self, batch: Batch) -> Batch:
        """The batch with the ids of its new rows moved behind all that the store has; stored rows keep theirs.

        Raises:
            InvalidInputError: it adopted rows of a batch that this store does not have; the message names them.
        """
        return Batch(self._core.rebase(_core_of(batch)))

    def append(self, batch: Batch, *, iteration: int, partial: bool = False) -> int:
        """Check and queue the new rows of a batch; returns the number of the write, durable once `sequence` reaches it.

        Args:
            batch: `store.rebase(batch)`. Rows that are in the store already (replayed trajectories) are not written
                again.
            iteration: the one that trains on it; its draws carry the same number.
            partial: rollouts of an iteration that was broken off: kept, but not its training batch.

        Raises:
            InvalidInputError: ids of the batch are taken, its draws are of another iteration, or rows that it takes for
                stored ones (adopted, drawn again) are not those of the store; the message names them. Or it has other
                facts (`Batch.facts`) than the store's first batch: all files of a table have the same columns.
            StoreError: the files cannot be written; the store has to be opened again then.
        """
        if iteration >= 1 << 62:
            raise InvalidInputError(f"iteration is {str(iteration)[:40]}; give a whole number from 0 to 2^62 - 1")
        return self._core.append(_core_of(batch), iteration, partial=partial)

    def flush(self) -> int:
        """Make everything that is queued durable, in one commit; returns the number of the last durable write.

        Raises:
            StoreError: the files cannot be written; the store has to be opened again then.
        """
        return self._core.flush()

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that the last `close_iteration` left to go on from, by their paths; each call makes new ones.

        Raises:
            NotFoundError: this reader's snapshot is older than what the writer has kept; `refresh` it.
            CorruptError: a file is damaged.
        """
        return {
            renames.table().place(path): values.view(dtype).reshape((rows,) if width is None else (rows, width))
            for path, dtype, rows, width, values in self._core.arrays()
        }

    def close_iteration(
        self, batch: Batch, state: dict[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> int:
        """Commit the computed columns of the iteration's batch and the state to go on from; count the iteration.

        Args:
            batch: what was appended for the iteration, all draws in their order, with computed columns.
            state: saved as JSON (NaN and infinity as null); lists and dicts can be nested 64 deep. The numbers of a
                table `metrics` in it are also rows of `Store.metrics`; those of tables in it are named with dots.
            arrays: the state's arrays by path, of one or two dimensions, in place of all those of the iteration before.
                Only what changed is written: rows of them, or whole arrays. Trajectories that are named in an array
                whose path ends in `trajectory_id` are kept by `drop_before`.

        Returns:
            The number of the write, which is durable then, with everything before it.

        Raises:
            InvalidInputError: the batch has other draws, the state cannot be saved as JSON or is nested deeper, or an
                array is of another type or has other dimensions.
            StoreError: the files cannot be written; the store has to be opened again then.

        Example:
            >>> import tempfile
            >>> import numpy as np
            >>> import agentrl_core as arl
            >>> store = arl.Store.open(tempfile.mkdtemp())
            >>> batch = store.rebase(arl.Forest().freeze())
            >>> _ = store.append(batch, iteration=0)
            >>> _ = store.close_iteration(batch, {"seen": 3}, {"memory/priority": np.array([0.5, 2.0])})
            >>> store.state, store.arrays["memory/priority"].tolist()
            ({'seen': 3}, [0.5, 2.0])
        """
        text = to_json(state, "state")
        given = [_given(path, array) for path, array in (arrays or {}).items()]
        return self._core.close_iteration(_core_of(batch), text, given, _numbers(state.get("metrics")))

    def has_batch(self, iteration: int) -> bool:
        """Whether the training batch of an iteration was appended, be it one without draws."""
        return self._core.has_batch(iteration)

    def batch(self, iteration: int) -> Batch:
        """The batch of an iteration as it was trained: its rows, the older ones that it drew again, computed columns.

        Once the iteration is closed, `Batch.state` is what its components remembered then.

        Raises:
            NotFoundError: there is none, or it was dropped.
            CorruptError: a file is damaged; the message names it and the bytes.
        """
        return Batch(self._core.batch(iteration))

    def trajectory_batch(self, ids: ArrayLike) -> Batch:
        """Trajectories of any age as a batch of their own, with their steps and paths and without draws.

        `Batch.concat([fresh, store.trajectory_batch(ids)]).draw(ids, source="replay")` draws them again; only the
        draws are written when that is appended.

        Args:
            ids: `trajectory_id`s of table `trajectories`, int64.

        Raises:
            NotFoundError: no such trajectory.
        """
        return Batch(self._core.batch_of(columns.integers(ids, "ids")))

    def blob(self, sha256: bytes) -> bytes:
        """The content of a blob (an image, a screenshot) that column `blobs` of `nodes` names by its hash.

        Args:
            sha256: the 32 bytes of the hash.

        Raises:
            NotFoundError: the store does not have it.
            CorruptError: the content is not the one that was stored.
        """
        return self._core.blob(sha256)

    def refresh(self) -> None:
        """Move a reader on to the commits that are there now.

        A reader that does not sees what there was when it opened. Where the writer has dropped iterations since, it
        reads the other ones as before (`batch`, `has_batch`, `trajectory_batch`), but no more whole tables.
        """
        self._core.refresh()

    def compact(self) -> int:
        """Merge neighbours into files twice the largest of them, to 64 MB; returns by how many files there are fewer.

        A thread of its own goes on beside `append`, `flush` and reads; while one is at it, another's call returns 0.
        Stock tools that read a folder just as its files are exchanged get an error, never a part of the rows. Blobs
        that no node refers to are removed. Ctrl-C ends it between two merges.
        """
        return self._core.compact()

    def drop_before(self, iteration: int, *, rewrite: bool = False) -> None:
        """Drop the rows of the iterations below `iteration`; their states stay in the journal.

        Args:
            iteration: the first one that is kept; at most `store.iteration`.
            rewrite: keep the older rows that later ones need (trajectories that were drawn again or that a component
                remembers, nodes of later paths).

        Raises:
            InvalidInputError: later rows need older ones and `rewrite` is not set; the message names one.
        """
        self._core.drop_before(iteration, rewrite=rewrite)

    def verify(self) -> list[dict[str, Any]]:
        """Everything that is wrong, as rows with `folder`, `kind`, `id` and `message`; empty if nothing is.

        `kind` is `damage` (a file is not what was written), `reference` (a row names one that is not there), `length`
        (log-probs, entropies or mask have another length than the tokens), `value` (NaN, infinity, a mask that is
        not 0 or 1), `duplicate` (an id twice; a trajectory that one iteration trains twice in one group) or `blob`.

        Example:
            >>> import tempfile
            >>> import agentrl_core as arl
            >>> with arl.Store.open(tempfile.mkdtemp()) as store:
            ...     store.verify()
            []
        """
        return [
            {"folder": folder, "kind": kind, "id": row, "message": message}
            for folder, kind, row, message in self._core.verify()
        ]

    def close(self) -> None:
        """Make what is queued durable and give the writer's lock back."""
        self._core.close()

    def snapshot(self) -> Store:
        """A reader of what is committed now, which stays with that while this store goes on or is closed."""
        self._core.files("nodes")  # what is queued is committed first
        return open_snapshot(self.path, self._core.snapshot)

    def __reduce__(self) -> tuple[Callable[[str, str], Store], tuple[str, str]]:
        """Pickle as the directory and what this store sees of it; the copy reads the same rows and writes none."""
        return open_snapshot, (self.path, self._core.snapshot)

    def __enter__(self) -> Self:
        """Use the store in a `with` statement."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the store."""
        self.close()


class RolloutLog:
    """Records of an iteration that is under way: what a run must know again if it is killed before the batch is stored.

    A record is a name and a payload, bytes of the caller's own. When `append` returns, the operating system has it:
    no kill of the process loses it, or any half of it. A power cut loses what was appended since the last sync, which
    `append` does where that is a second ago (in a store with `sync="always"` each time, with `sync="never"` not at
    all). Behind the last whole record of the file nothing counts; the next append cuts it off.

    It belongs to the process that opened the store, to all of its threads, and ends with the store.

    Example:
        >>> import tempfile
        >>> import agentrl_core as arl
        >>> folder = tempfile.mkdtemp()
        >>> store = arl.Store.open(folder)
        >>> store.rollout_log(0).append(b"group 3, member 1, turn 0", b"a segment")
        >>> store.close()                                       # or be killed
        >>> store = arl.Store.open(folder)
        >>> journal = store.rollout_log(0)
        >>> journal.records()
        [(b'group 3, member 1, turn 0', b'a segment')]
        >>> number = store.append(arl.Forest().freeze(), iteration=0)
        >>> store.flush() == number                             # the batch is there: the journal is over
        True
        >>> journal.append(b"group 3, member 1, turn 1", b"another")
        Traceback (most recent call last):
        ...
        agentrl_core.exceptions.InvalidInputError: the journal of iteration 0 is over: the batch of ...
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.Journal) -> None:
        self._core = core

    @property
    def iteration(self) -> int:
        """The iteration."""
        return self._core.iteration

    def append(self, name: bytes, payload: bytes) -> None:
        """Put a record behind the others.

        Args:
            name: what the record is found by.
            payload: what it says; both together have at most 256 MiB.

        Raises:
            InvalidInputError: too long, or the journal is over: the batch is committed, or the store closed.
            StoreError: it cannot be written; the next append begins where this one did.
            UnsupportedError: this process was forked from the one that opened the store.
        """
        self._core.append(name, payload)

    def records(self) -> list[tuple[bytes, bytes]]:
        """Name and payload of each record, in the order in which they were appended."""
        return self._core.records()

    def sync(self) -> None:
        """Make what was appended durable, whatever happens to the machine.

        Raises:
            StoreError: the disk failed. Nothing more is appended then: open the store again.
        """
        self._core.sync()


def _numbers(metrics: object, before: str = "") -> list[tuple[str, float]]:
    """The numbers of a table, and of tables in it, by their names."""
    found = []
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        if isinstance(value, Mapping):
            found += _numbers(value, f"{before}{name}.")
        elif isinstance(value, (Real, np.number)) and not isinstance(value, bool):
            found.append((f"{before}{name}", float(value)))
    return found


def _given(path: str, array: Any) -> tuple[str, str, int, int | None, NDArray[np.uint8]]:
    """An array of a state as the core takes it."""
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        told = (
            f"an array of {array.dtype} with {array.ndim} dimensions" if isinstance(array, np.ndarray) else repr(array)
        )
        raise InvalidInputError(
            f"arrays[{path!r}] is {told:.80}; give an array of bool, whole numbers or floats with one or two dimensions"
        )
    kept = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    width = kept.shape[1] if kept.ndim == 2 else None
    return path, kept.dtype.name, kept.shape[0], width, kept.reshape(-1).view(np.uint8)


def _core_of(batch: Batch) -> _core.Batch:
    if not isinstance(batch, Batch):
        raise InvalidInputError(f"batch is a {type(batch).__name__}; give a Batch, as Forest.freeze makes one")
    return batch._core


def open_snapshot(path: str, snapshot: str) -> Store:
    """A reader of what a store saw when it said so."""
    return Store(_core.Store.open_snapshot(path, snapshot))
