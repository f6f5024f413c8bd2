"""What the store of a run holds of solved tasks, for the programs of an iteration."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.store import Store
from agentrl_core.engine.chat import Chat
from agentrl_core.rollout.library import unsolved
from agentrl_core.rollout.prefix import Prefix


class StoreLibrary:
    """The trajectories of earlier iterations that solved their task; see `rollout.Library`.

    Args:
        store: of the run.
        iteration: those before it are looked at.
        chat: gives the texts of actions.
    """

    def __init__(self, store: Store, iteration: int, chat: Chat) -> None:
        self._store = store
        self._iteration = iteration
        self._chat = chat

    @property
    def folder(self) -> str:
        """Where the store of the run is."""
        return self._store.path

    def solved(self, task_id: str | None = None) -> list[int]:
        """Ids of the trajectories that solved a task, or any; the oldest first."""
        ids, tasks = self._found
        return [row for row, task in zip(ids.tolist(), tasks, strict=True) if task_id in (None, task)]

    def task_id(self, trajectory_id: int) -> str:
        """The task that a trajectory solved."""
        ids, tasks = self._found
        rows = np.flatnonzero(ids == trajectory_id)
        if not len(rows):
            raise unsolved(trajectory_id)
        return str(tasks[rows[0]])

    def actions(self, trajectory_id: int) -> list[str]:
        """What a trajectory said, turn by turn."""
        actions = self.prefix(trajectory_id).actions
        return [action if isinstance(action, str) else self._chat.decode(action) for action in actions]

    def prefix(self, trajectory_id: int, *, turns: int | None = None, tokens: int = 0) -> Prefix:
        """The beginning of a trajectory, to begin with."""
        self.task_id(trajectory_id)
        return Prefix.stored(self._store.trajectory_batch([trajectory_id]), trajectory_id, turns=turns, tokens=tokens)

    @cached_property
    def _found(self) -> tuple[NDArray[np.int64], list[str]]:
        table = self._store.trajectories
        solved = (table.column("success") == 1) & (table.column("status") == 0) & (table.column("role") == 0)
        rows = np.flatnonzero(solved & (table.column("iteration") < self._iteration))
        tasks = table.column("task_id")
        return table.column("trajectory_id")[rows], [tasks[row] for row in rows.tolist()]
