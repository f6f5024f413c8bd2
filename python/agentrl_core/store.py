"""Store: the durable form of the data, a directory of Arrow files that stock tools read while training runs."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentrl_core import _core
from agentrl_core._core import Table
from agentrl_core._json import to_json
from agentrl_core.batch import Batch


class Store:
    """A run on disk: sealed Arrow IPC files, one per table and commit, and a manifest that names those that count.

    `pl.scan_ipc("run/nodes/*.arrow")` reads whole files at any moment; `pl.DataFrame(store.nodes)` reads exactly what
    is committed. One process writes, any number read.

    Example:
        >>> import tempfile
        >>> import agentrl_core as arl
        >>> folder = tempfile.mkdtemp()
        >>> with arl.Store.open(folder) as store:
        ...     store.iteration, len(store.nodes)
        (0, 0)
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.Store) -> None:
        self._core = core

    @classmethod
    def open(cls, path: str | PathLike[str], *, read_only: bool = False) -> Self:
        """Open a store, creating it if there is none.

        Args:
            path: the directory.
            read_only: do not take the writer's lock; see the commits that are there now.

        Raises:
            StoreError: another process writes this store, or the directory cannot be used.
            CorruptError: the manifest is damaged.
            NotFoundError: `read_only` and there is no store.
        """
        return cls(_core.Store.open(path, read_only=read_only))

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
    def state(self) -> dict[str, Any]:
        """What the last `close_iteration` left to go on from."""
        return json.loads(self._core.state) or {}

    @property
    def nodes(self) -> Table:
        """Committed runs of tokens."""
        return self._core.table("nodes")

    @property
    def steps(self) -> Table:
        """Committed turns."""
        return self._core.table("steps")

    @property
    def trajectories(self) -> Table:
        """Committed trajectories."""
        return self._core.table("trajectories")

    @property
    def draws(self) -> Table:
        """Committed uses of trajectories."""
        return self._core.table("draws")

    @property
    def tasks(self) -> Table:
        """Task statistics; rows are appended when they change, so the last one of a task wins."""
        return self._core.table("tasks")

    def files(self, table: str) -> list[tuple[Path, int]]:
        """The Arrow files of a table, and how many rows of each are committed: what a scanner reads for this snapshot.

        Args:
            table: one of the tables, or `draw_columns`, `step_columns`, `node_columns`.

        Raises:
            NotFoundError: there is no such table.
        """
        return self._core.files(table)

    def rebase(self, batch: Batch) -> Batch:
        """The batch with its ids moved behind all that the store has; ids of a fresh batch begin at zero."""
        return Batch(self._core.rebase(batch._core))

    def append(self, batch: Batch, *, iteration: int) -> int:
        """Commit the tables of a batch; returns the number of the commit, which is on disk then.

        Raises:
            InvalidInputError: ids of the batch are taken; append `store.rebase(batch)`.
            StoreError: the files cannot be written.
        """
        return self._core.append(batch._core, iteration)

    def close_iteration(self, batch: Batch, state: dict[str, Any]) -> int:
        """Commit the computed columns of the iteration's batch and the state to go on from; count the iteration.

        Args:
            batch: what was appended for the iteration, all draws in their order, with computed columns.
            state: saved as JSON (NaN and infinity as null).

        Returns:
            The number of the commit, which is on disk then.

        Raises:
            InvalidInputError: the batch has other draws, or the state cannot be saved as JSON.
            StoreError: the files cannot be written.
        """
        return self._core.close_iteration(batch._core, to_json(state, "state"))

    def has_batch(self, iteration: int) -> bool:
        """Whether the training batch of an iteration is committed."""
        return self._core.has_batch(iteration)

    def batch(self, iteration: int) -> Batch:
        """The batch of an iteration as it was trained: tables and computed columns.

        Raises:
            NotFoundError: there is none.
            CorruptError: a file is damaged; the message names it.
        """
        return Batch(self._core.batch(iteration))

    def close(self) -> None:
        """Give the writer's lock back."""
        self._core.close()

    def __enter__(self) -> Self:
        """Use the store in a `with` statement."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the store."""
        self.close()
