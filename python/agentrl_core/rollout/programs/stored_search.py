"""Stored searches: groups of earlier iterations or runs, by task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentrl_core.data.store import Store
from agentrl_core.rollout.search_tree import SearchTree

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.rollout.group import Group


@dataclass(frozen=True)
class StoredSearches:
    """The groups of a store by task.

    In the run's own store a group sees earlier iterations only. Another store is read in its current state, so it
    should not change.

    Args:
        folder: folder of the store; empty: none.
    """

    folder: str

    def find(self, task_id: str, before: int | None = None) -> tuple[Batch, int] | None:
        """Return the newest group of a task with its batch, or None.

        Args:
            task_id: the task.
            before: only groups of earlier iterations; None: any.
        """
        if not self.folder:
            return None
        with Store.open(self.folder, read_only=True) as store:
            newest = store.iteration if before is None else min(before, store.iteration)
        for iteration in reversed(range(newest)):
            batch, groups = _groups(self.folder, iteration)
            if task_id in groups:
                return batch, groups[task_id]
        return None

    def resume(self, group: Group) -> SearchTree | None:
        """Continue the newest stored search of a group's task; None if there is none."""
        is_same_folder = (
            bool(group.library.folder) and Path(group.library.folder).resolve() == Path(self.folder).resolve()
        )
        found = self.find(group.task.task_id, group.iteration if is_same_folder else None)
        return None if found is None else group.resume_search(*found)


@lru_cache(maxsize=8)
def _groups(folder: str, iteration: int) -> tuple[Batch, dict[str, int]]:
    """Return a batch, and the last group of each of its tasks."""
    with Store.open(folder, read_only=True) as store:
        batch = store.batch(iteration)
    tasks, groups = (batch.trajectories.column(name) for name in ("task_id", "group_id"))
    return batch, dict(zip(np.asarray(tasks).tolist(), np.asarray(groups).tolist(), strict=True))
