"""Searches that are in a store: a group of an earlier iteration or run, by its task."""

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
    """The groups of a store, to be found by task.

    Of the store of the run itself a group sees the iterations before its own. Another store is taken as it is, so it
    should rest.

    Args:
        folder: of the store; empty: there is none.
    """

    folder: str

    def find(self, task_id: str, before: int | None = None) -> tuple[Batch, int] | None:
        """The newest group of a task, and the batch that holds it; None where there is none.

        Args:
            task_id: the task.
            before: the iteration that the group has to be older than; None: any.
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
        """Have a group go on with the newest search of its task; None where there is none."""
        own = bool(group.library.folder) and Path(group.library.folder).resolve() == Path(self.folder).resolve()
        found = self.find(group.task.task_id, group.iteration if own else None)
        return None if found is None else group.resume_search(*found)


@lru_cache(maxsize=8)
def _groups(folder: str, iteration: int) -> tuple[Batch, dict[str, int]]:
    """A batch, and the last group of each of its tasks."""
    with Store.open(folder, read_only=True) as store:
        batch = store.batch(iteration)
    tasks, groups = (batch.trajectories.column(name) for name in ("task_id", "group_id"))
    return batch, dict(zip(np.asarray(tasks).tolist(), np.asarray(groups).tolist(), strict=True))
