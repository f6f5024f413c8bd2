"""Outcomes of an iteration's rollouts, by task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.data.table_codes import CODES

if TYPE_CHECKING:
    from agentrl_core.component.state import IterationRecord
    from agentrl_core.select.pool import Pool
    from agentrl_core.select.selector import Selection


@dataclass(frozen=True, eq=False)
class TaskOutcomes:
    """Outcomes of an iteration by task: one row per tried task; the rollouts of all tasks, task after task.

    Only rollouts of the policy count: members that finished or were truncated. Rejected groups and surveys count too.

    Attributes:
        rows: rows of the pool, each once, ascending.
        offsets: rollouts of task i are `offsets[i]` to `offsets[i + 1]`, at least one each.
        rewards: reward of each rollout; NaN if unknown.
        solved: 1 or 0 for each rollout; NaN if unknown.
        survey: whether the rollout belongs to a survey.
        variants: the prompt variant of each rollout; -1: none.
        places: position of the task in the arrays of trackers.
        known: number of known tasks after these visits.
        iteration: number of the iteration.
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    rewards: NDArray[np.float64]
    solved: NDArray[np.float64]
    survey: NDArray[np.bool_]
    variants: NDArray[np.int32]
    places: NDArray[np.int64]
    known: int
    iteration: int

    @classmethod
    def of(cls, closed: IterationRecord, known: NDArray[np.int64]) -> tuple[Self, NDArray[np.int64]]:
        """Return the outcomes of a closed iteration, and all known rows: new ones come last.

        Args:
            closed: the iteration, with its selection and pool.
            known: rows of the tasks that were tried before.
        """
        entries, rewards, solved = _outcomes(closed)
        selection = closed.selection
        rows = selection.rows[entries] if selection is not None else np.zeros(0, np.int64)
        order = np.argsort(rows, kind="stable")
        tasks, begins = np.unique(rows[order], return_index=True)
        places = _core.select.places(known, tasks)
        new = places < 0
        places[new] = len(known) + np.arange(int(new.sum()))
        survey = selection.purpose[entries] == 1 if selection is not None else np.zeros(0, np.bool_)
        variants = selection.variants[entries] if selection is not None else np.zeros(0, np.int32)
        visits = cls(
            tasks,
            np.append(begins, len(rows)).astype(np.int64),
            rewards[order],
            solved[order],
            survey[order],
            variants[order],
            places,
            len(known) + int(new.sum()),
            closed.iteration,
        )
        return visits, np.concatenate([known, tasks[new]])

    def __len__(self) -> int:
        """Number of tried tasks."""
        return len(self.rows)

    def subset(self, keep: NDArray[np.bool_]) -> Self:
        """Return the outcomes of some rollouts only; tasks without any are removed."""
        counts = np.add.reduceat(keep, self.offsets[:-1]) if len(self) else np.zeros(0, np.int64)
        stays = counts > 0
        return replace(
            self,
            rows=self.rows[stays],
            offsets=np.append(0, np.cumsum(counts[stays])).astype(np.int64),
            rewards=self.rewards[keep],
            solved=self.solved[keep],
            survey=self.survey[keep],
            variants=self.variants[keep],
            places=self.places[stays],
        )

    def extended(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of an array of a tracker with a row for each known task; new rows are 0."""
        longer = np.zeros((self.known, *array.shape[1:]), array.dtype)
        longer[: len(array)] = array
        return longer

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of a number of each rollout over the rollouts of each task."""
        return np.add.reduceat(values, self.offsets[:-1]) if len(self) else np.zeros(0)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of rollouts of each task."""
        return np.diff(self.offsets)


def _outcomes(closed: IterationRecord) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return entry in the selection, reward and success of each counted rollout."""
    table = closed.finished.trajectories
    codes = {name: np.asarray(table.column(name)) for name in ("status", "role", "origin", "iteration", "group_id")}
    # Replayed trajectories were counted when they were new.
    here = np.flatnonzero(codes["iteration"] == closed.iteration)
    _, first, inverse = np.unique(codes["group_id"][here], return_index=True, return_inverse=True)
    tasks = table.column("task_id")
    of_groups = entries_of([tasks[row] for row in here[first].tolist()], closed.selection, closed.pool)
    entries = of_groups[inverse]
    counted = entries >= 0
    for name, values in (("status", ("finished", "truncated")), ("role", ("member",)), ("origin", ("generated",))):
        counted &= np.isin(codes[name][here], [CODES[name].index(value) for value in values])
    rewards, solved = (np.array(table.column(name), np.float64)[here][counted] for name in ("reward", "success"))
    return entries[counted], rewards, solved


def entries_of(tasks: list[str], selection: Selection | None, pool: Pool | None) -> NDArray[np.int64]:
    """Return the selection entry of each group, by its task; several entries of one task in order.

    Groups derived from others have none (-1).
    """
    waiting: dict[str, list[int]] = {}
    if selection is not None and pool is not None:
        for entry, task_id in reversed(list(enumerate(pool.ids(selection.rows)))):
            waiting.setdefault(task_id, []).append(entry)
    of_groups = (waiting.get(task) for task in tasks)
    return np.array([entries.pop() if entries else -1 for entries in of_groups], np.int64)
