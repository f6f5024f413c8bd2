"""Store: durable data of a run, a directory of Arrow files that other tools can read during training."""

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
from agentrl_core._util.json_text import is_unicode, to_json
from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

# A forked worker must not hold its parent's lock, neither a held one nor one being acquired.
os.register_at_fork(
    before=_core.before_fork,
    after_in_parent=_core.after_fork_in_parent,
    after_in_child=_core.after_fork_in_child,
)


class Store:
    """A run on disk: sealed Arrow IPC files, one folder per table, and a manifest of committed files.

    `pl.scan_ipc("run/nodes/*.arrow")` reads each committed row exactly once. Files never change, and names are not
    reused; small files are merged from time to time, eight at once. A tool that reads a folder during a merge gets an
    error, never partial rows, and should retry (`polars.scan` of this package retries). A writer killed during a merge
    leaves a marker file `0-being-rewritten.arrow`, which the next writer removes.

    One process writes, any number read. The lock ends with the writer, even if it is killed while its forked workers
    live. Writes acknowledged by `flush`, `close_iteration` and `close` survive a kill or a power cut. The directory may
    contain other files (a recipe, checkpoints, notes): the store only changes and removes files with its own names.

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

    __slots__ = ("_core", "_own_state")

    def __init__(self, core: _core.Store) -> None:
        self._core = core
        self._own_state: str | None = None
        """The state that this object saved last, which has today's names."""

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        read_only: bool = False,
        sync: Literal["batch", "always", "never"] = "batch",
    ) -> Self:
        """Open a store, or create it if it does not exist. Unfinished files of a killed writer are removed.

        Args:
            path: the directory, on a file system with locks (NFS: mounted with locking). Other files in it stay.
            read_only: whether to open it without the writer's lock, at the current commit until `refresh`.
            sync: when a write is durable. `batch`: appends are queued (up to 256 MB), `flush`, `close_iteration` and
                `close` make them durable in one commit; `always`: each call is durable when it returns; `never`: as
                `batch`, but left to the operating system, so that flushed data survive a killed process, but maybe not
                a power cut.

        Raises:
            StoreError: another process writes this store, this one already has it open, or the directory cannot be
                used.
            InvalidInputError: a folder of the store is a link to another place, which must not be written.
            CorruptError: the manifest is damaged or a file is missing; the message names it.
            NotFoundError: `read_only` and the store does not exist. UnsupportedError: a newer version wrote it with
                features that this one lacks, or the file system has no locks.
        """
        return cls(_core.Store.open(path, read_only=read_only, sync=sync))

    @property
    def path(self) -> str:
        """The directory."""
        return str(self._core.path)

    @property
    def iteration(self) -> int:
        """Number of closed iterations, which is the next iteration of the run."""
        return self._core.iteration

    @property
    def version(self) -> int:
        """Number of the last commit, 0 before the first one."""
        return self._core.version

    @property
    def sequence(self) -> int:
        """Number of the last durable write: appends and closed iterations are counted from 1."""
        return self._core.sequence

    @property
    def state(self) -> dict[str, Any]:
        """State that the last `close_iteration` saved."""
        text = self._core.state
        found: dict[str, Any] = json.loads(text) or {}
        return found if text == self._own_state else renames.table().state(found)

    @property
    def nodes(self) -> Table:
        """Committed runs of tokens. Reading a table through its writer first commits queued data."""
        return self._core.table("nodes")

    @property
    def steps(self) -> Table:
        """Committed turns."""
        return self._core.table("steps")

    @property
    def trajectories(self) -> Table:
        """Committed trajectories; `trajectory_batch` returns some of them as a batch."""
        return self._core.table("trajectories")

    @property
    def draws(self) -> Table:
        """Committed draws, which are uses of trajectories."""
        return self._core.table("draws")

    @property
    def tasks(self) -> Table:
        """Task statistics, one row per change: the last row of a task is current.

        `agentrl_core.integrations.polars.scan(store).latest_tasks` returns those rows only.
        """
        return self._core.table("tasks")

    @property
    def decisions(self) -> Table:
        """Decisions of programs."""
        return self._core.table("decisions")

    @property
    def metrics(self) -> Table:
        """Metrics: `iteration` i64, `name` utf8, `value` f64, one row per number of a closed iteration."""
        return renames.table().measured(self._core.metrics())

    @property
    def write_log(self) -> Table:
        """One row per write: iteration, kind, rows by folder; for a closed iteration also state and components."""
        return self._core.writes()

    def rollout_log(self, iteration: int) -> RolloutLog:
        """Return the rollout log of an iteration without a stored batch, as a killed process left it, or an empty one.

        It is removed when the batch is committed (`append` without `partial`, and `flush`), or the iteration closed.

        Raises:
            InvalidInputError: the store is open for reading only, or has the batch of the iteration.
            StoreError: the file cannot be read.
            UnsupportedError: a newer version wrote it.
        """
        return RolloutLog(self._core.rollout_log(iteration))

    def files(self, table: str) -> list[tuple[Path, int, dict[str, tuple[int, int]]]]:
        """Return the Arrow files of a table in row order, for scanning this snapshot.

        Each has its number of committed rows, and bounds of `iteration`, `group_id` and ids, if known.

        Args:
            table: one of the tables, or `metrics`, `states`, `draw_columns`, `step_columns`, `node_columns`.

        Raises:
            NotFoundError: the table does not exist.
        """
        return self._core.files(table)

    def rebase(self, batch: Batch) -> Batch:
        """Return the batch with ids of new rows shifted after those of the store; stored rows keep their ids.

        Raises:
            InvalidInputError: it has adopted rows that are not in this store; the message names them.
        """
        return Batch(self._core.rebase(_core_of(batch)))

    def append(self, batch: Batch, *, iteration: int, partial: bool = False) -> int:
        """Check and queue the new rows of a batch; return the number of the write, durable once `sequence` reaches it.

        Args:
            batch: `store.rebase(batch)`. Rows already in the store (replayed trajectories) are not written again.
            iteration: the iteration that trains on it, equal to that of its draws.
            partial: whether these are rollouts of an interrupted iteration, stored but not its training batch.

        Raises:
            InvalidInputError: ids of the batch are taken, its draws are of another iteration, or its stored rows
                (adopted, drawn again) differ from those of the store; the message names them. Or it has other facts
                (`Batch.facts`) than the store's first batch: all files of a table have the same columns.
            StoreError: the files cannot be written; reopen the store then.
        """
        if iteration >= 1 << 62:
            raise InvalidInputError(f"iteration is {str(iteration)[:40]}; give a whole number from 0 to 2^62 - 1")
        return self._core.append(_core_of(batch), iteration, partial=partial)

    def flush(self) -> int:
        """Make all queued data durable in one commit, and return the number of the last durable write.

        Raises:
            StoreError: the files cannot be written; reopen the store then.
        """
        return self._core.flush()

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return new copies of the arrays that the last `close_iteration` saved, by path.

        Raises:
            NotFoundError: the writer removed data of this reader's snapshot; `refresh` it.
            CorruptError: a file is damaged.
        """
        return {
            renames.table().place(path): values.view(dtype).reshape((rows,) if width is None else (rows, width))
            for path, dtype, rows, width, values in self._core.arrays()
        }

    def close_iteration(
        self, batch: Batch, state: dict[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> int:
        """Commit the computed columns of the iteration's batch and the state of the run, and close the iteration.

        Args:
            batch: the appended batch of the iteration, with all draws in order and computed columns.
            state: saved as JSON (NaN and infinity as null); lists and dicts can be nested 64 deep. The numbers of a
                table `metrics` in it are also rows of `Store.metrics`; those of nested tables are named with dots.
            arrays: the state's arrays by path, of one or two dimensions, which replace all earlier ones. Only changed
                rows or arrays are written. `drop_before` keeps trajectories listed in an array whose path ends in
                `trajectory_id`.

        Returns:
            The number of the write, which is durable with all earlier ones.

        Raises:
            InvalidInputError: the batch has other draws, the state cannot be saved as JSON or is nested deeper, or an
                array has an unsupported dtype or shape. StoreError: the files cannot be written; reopen the store then.

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
        metrics = list(flatten_metrics(state.get("metrics")).items())
        number = self._core.close_iteration(_core_of(batch), text, given, metrics)
        self._own_state = text
        return number

    def has_batch(self, iteration: int) -> bool:
        """Return whether the training batch of an iteration was appended, even one without draws."""
        return self._core.has_batch(iteration)

    def batch(self, iteration: int) -> Batch:
        """Return the batch of an iteration as trained: its rows, replayed older rows, computed columns.

        For a closed iteration, `Batch.state` has the states of its components.

        Raises:
            NotFoundError: it does not exist, or was dropped. CorruptError: a file is damaged; the message names it and
                the bytes.
        """
        batch = Batch(self._core.batch(iteration))
        state = batch.state
        now = renames.table().places(state)
        return batch if now == state else batch.with_state(now)

    def trajectory_batch(self, ids: ArrayLike) -> Batch:
        """Return trajectories of any age as a new batch, with their steps and paths and without draws.

        `Batch.concat([fresh, store.trajectory_batch(ids)]).with_draws(ids, source="replay")` draws them again;
        appending it writes only the draws.

        Args:
            ids: `trajectory_id`s of table `trajectories`, int64.

        Raises:
            NotFoundError: a trajectory does not exist.
        """
        return Batch(self._core.batch_of(columns.integers(ids, "ids")))

    def blob(self, sha256: bytes) -> bytes:
        """Return the content of a blob (an image, a screenshot) that column `blobs` of `nodes` names by its hash.

        Args:
            sha256: the 32 bytes of the hash.

        Raises:
            NotFoundError: the store does not have it.
            CorruptError: the content differs from the stored one.
        """
        return self._core.blob(sha256)

    def refresh(self) -> None:
        """Move a reader to the latest commit.

        Without it a reader stays at the commit that it opened. If the writer dropped iterations since, other iterations
        are still readable (`batch`, `has_batch`, `trajectory_batch`), but whole tables are not.
        """
        self._core.refresh()

    def compact(self) -> int:
        """Merge neighbouring files into files of at least twice the size, up to 64 MB; return the reduction in files.

        It can run in a separate thread beside `append`, `flush` and reads; a concurrent call returns 0. Tools that read
        a folder while files are exchanged get an error, never partial rows. Unreferenced blobs are removed. Ctrl-C
        stops it between two merges.
        """
        return self._core.compact()

    def drop_before(self, iteration: int, *, rewrite: bool = False) -> None:
        """Drop the rows of iterations before `iteration`; their states stay in the write log.

        Args:
            iteration: the first iteration to keep; at most `store.iteration`.
            rewrite: whether to keep older rows that later ones need (trajectories that were replayed or that a
                component remembers, nodes of later paths).

        Raises:
            InvalidInputError: later rows need older ones and `rewrite` is not set; the message names one.
        """
        self._core.drop_before(iteration, rewrite=rewrite)

    def verify(self) -> list[dict[str, Any]]:
        """Check the store, and return all errors as rows with `folder`, `kind`, `id` and `message`; empty if sound.

        `kind` is `damage` (a file differs from what was written), `reference` (a row refers to a missing one), `length`
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
        """Make queued data durable and release the writer's lock."""
        self._core.close()

    def snapshot(self) -> Store:
        """Return a reader of the current commit, which stays at it even if this store changes or closes."""
        self._core.files("nodes")  # queued data are committed first
        return open_snapshot(self.path, self._core.snapshot)

    def __reduce__(self) -> tuple[Callable[[str, str], Store], tuple[str, str]]:
        """Pickle as the directory and the visible commit; the copy is read-only and has the same rows."""
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
    """Records of a running iteration, for recovery if the run is killed before the batch is stored.

    A record is a name and a payload of bytes. When `append` returns, the operating system has the record, so it
    survives a kill of the process completely. A power cut loses records since the last sync. `append` syncs if the last
    sync was a second ago (with `sync="always"` each time, with `sync="never"` not at all). Data after the last complete
    record are ignored and overwritten by the next append.

    All threads of the process that opened the store may use it, until the store closes.

    Example:
        >>> import tempfile
        >>> import agentrl_core as arl
        >>> folder = tempfile.mkdtemp()
        >>> store = arl.Store.open(folder)
        >>> store.rollout_log(0).append(b"group 3, member 1, turn 0", b"a segment")
        >>> store.close()                                       # or be killed
        >>> store = arl.Store.open(folder)
        >>> log = store.rollout_log(0)
        >>> log.records()
        [(b'group 3, member 1, turn 0', b'a segment')]
        >>> number = store.append(arl.Forest().freeze(), iteration=0)
        >>> store.flush() == number                             # the batch is there: the rollout log is over
        True
        >>> log.append(b"group 3, member 1, turn 1", b"another")
        Traceback (most recent call last):
        ...
        agentrl_core.exceptions.InvalidInputError: the rollout log of iteration 0 is closed: the batch of ...
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.RolloutLog) -> None:
        self._core = core

    @property
    def iteration(self) -> int:
        """The iteration."""
        return self._core.iteration

    def append(self, name: bytes, payload: bytes) -> None:
        """Append a record.

        Args:
            name: name of the record.
            payload: its content; both together have at most 256 MiB.

        Raises:
            InvalidInputError: the record is too long, or the log has ended: the batch is committed, or the store
                closed.
            StoreError: it cannot be written; the next append starts at the same place.
            UnsupportedError: this process was forked from the one that opened the store.
        """
        self._core.append(name, payload)

    def records(self) -> list[tuple[bytes, bytes]]:
        """Return name and payload of each record, in order."""
        return self._core.records()

    def sync(self) -> None:
        """Sync all appended records to disk, so that they survive a power cut.

        Raises:
            StoreError: the disk failed. Further appends fail: reopen the store.
        """
        self._core.sync()


def flatten_metrics(metrics: object) -> dict[str, float]:
    """Return the numbers of a table of metrics by name, with dots for nested tables; other values are left out.

    Raises:
        InvalidInputError: a name is not Unicode, or a number is beyond the largest float.

    Example:
        >>> from agentrl_core.data.store import flatten_metrics
        >>> flatten_metrics({"loss": 0.5, "critic": {"loss": 1}, "note": "text"})
        {'loss': 0.5, 'critic.loss': 1.0}
    """
    found: dict[str, float] = {}
    _flatten(metrics, "", found)
    if not is_unicode("".join(found)):
        wrong = next(name for name in found if not is_unicode(name))
        raise InvalidInputError(f"metrics: name {wrong!r} is not Unicode (a lone surrogate); give another name")
    return found


def _flatten(metrics: object, before: str, found: dict[str, float]) -> None:
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        if isinstance(value, Mapping):
            _flatten(value, f"{before}{name}.", found)
        elif isinstance(value, (Real, np.number)) and not isinstance(value, bool):
            try:
                found[f"{before}{name}"] = float(value)
            except OverflowError:
                raise InvalidInputError(
                    f"metrics: {f'{before}{name}'!r} is {str(value)[:40]}…, beyond the largest float; give a smaller "
                    "number"
                ) from None


def _given(path: str, array: Any) -> tuple[str, str, int, int | None, NDArray[np.uint8]]:
    """Convert an array of a state to the form of the core."""
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        found = (
            f"an array of {array.dtype} with {array.ndim} dimensions" if isinstance(array, np.ndarray) else repr(array)
        )
        raise InvalidInputError(
            f"arrays[{path!r}] is {found:.80}; give an array of bool, integers or floats with one or two dimensions"
        )
    kept = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    width = kept.shape[1] if kept.ndim == 2 else None
    return path, kept.dtype.name, kept.shape[0], width, kept.reshape(-1).view(np.uint8)


def _core_of(batch: Batch) -> _core.Batch:
    if not isinstance(batch, Batch):
        raise InvalidInputError(f"batch is a {type(batch).__name__}; give a Batch, such as Forest.freeze returns")
    return batch._core


def open_snapshot(path: str, snapshot: str) -> Store:
    """Open a reader of a store's recorded commit."""
    return Store(_core.Store.open_snapshot(path, snapshot))
