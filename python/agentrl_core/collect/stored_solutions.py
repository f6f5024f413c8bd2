"""Solved trajectories of a run's store, for the programs of an iteration."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.store import Store
from agentrl_core.engine.chat import Chat
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.solved_trajectories import unsolved


class StoreLibrary:
    """Trajectories of earlier iterations that solved their task; see `rollout.solved_trajectories.Library`.

    Args:
        store: store of the run.
        iteration: only earlier iterations are read.
        chat: decodes actions.
    """

    def __init__(self, store: Store, iteration: int, chat: Chat) -> None:
        self._store = store
        self._iteration = iteration
        self._chat = chat

    @property
    def folder(self) -> str:
        """Folder of the run's store."""
        return self._store.path

    def solved(self, task_id: str | None = None) -> list[int]:
        """Return ids of trajectories that solved a task, or any task; oldest first."""
        ids, tasks = self._found
        return [row for row, task in zip(ids.tolist(), tasks, strict=True) if task_id in (None, task)]

    def task_id(self, trajectory_id: int) -> str:
        """Return the task that a trajectory solved."""
        ids, tasks = self._found
        rows = np.flatnonzero(ids == trajectory_id)
        if not len(rows):
            raise unsolved(trajectory_id)
        return str(tasks[rows[0]])

    def actions(self, trajectory_id: int) -> list[str]:
        """Return the actions of a trajectory, turn by turn."""
        actions = self.prefix(trajectory_id).actions
        return [action if isinstance(action, str) else self._chat.decode(action) for action in actions]

    def prefix(self, trajectory_id: int, *, turns: int | None = None, tokens: int = 0) -> Prefix:
        """Return a prefix of a trajectory to start from."""
        self.task_id(trajectory_id)
        return Prefix.stored(self._store.trajectory_batch([trajectory_id]), trajectory_id, turns=turns, tokens=tokens)

    @cached_property
    def _found(self) -> tuple[NDArray[np.int64], list[str]]:
        table = self._store.trajectories
        solved = (table.column("success") == 1) & (table.column("status") == 0) & (table.column("role") == 0)
        rows = np.flatnonzero(solved & (table.column("iteration") < self._iteration))
        tasks = table.column("task_id")
        return table.column("trajectory_id")[rows], [tasks[row] for row in rows.tolist()]
