"""What an iteration learned of tasks: the outcomes of its rollouts, by task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.data.codes import CODES

if TYPE_CHECKING:
    from agentrl_core.component.state import IterationRecord
    from agentrl_core.select.pool import Pool
    from agentrl_core.select.selection import Selection


@dataclass(frozen=True, eq=False)
class TaskOutcomes:
    """The outcomes of an iteration by task: one row a task that was tried, its rollouts one after the other.

    Only what the policy did counts: members that finished or were truncated. Rejected groups and surveys count too.

    Attributes:
        rows: of the pool, each once, ascending.
        offsets: rollouts of task i are `offsets[i]` to `offsets[i + 1]`, at least one each.
        rewards: what the environment paid for each rollout; NaN where it is not known.
        solved: 1 or 0 for each rollout; NaN where nobody said.
        survey: whether the rollout was one of a survey.
        variants: the prompt variant of each rollout; -1: none.
        places: where a tracker keeps what it knows of the task.
        known: of how many tasks it knows after these visits.
        iteration: which one.
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
        """The visits of an iteration that is closed, and the rows that are known then: new ones come last.

        Args:
            closed: the iteration, with its selection and pool.
            known: rows of the tasks that were tried before.
        """
        entries, rewards, solved = _outcomes(closed)
        chosen = closed.selection
        rows = chosen.rows[entries] if chosen is not None else np.zeros(0, np.int64)
        order = np.argsort(rows, kind="stable")
        tasks, begins = np.unique(rows[order], return_index=True)
        places = _core.select.places(known, tasks)
        new = places < 0
        places[new] = len(known) + np.arange(int(new.sum()))
        survey = chosen.purpose[entries] == 1 if chosen is not None else np.zeros(0, np.bool_)
        variants = chosen.variants[entries] if chosen is not None else np.zeros(0, np.int32)
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
        """How many tasks were tried."""
        return len(self.rows)

    def subset(self, keep: NDArray[np.bool_]) -> Self:
        """The visits with some of the rollouts alone; tasks without one are no longer visited."""
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

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of a number of each rollout, by task."""
        return np.add.reduceat(values, self.offsets[:-1]) if len(self) else np.zeros(0)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many rollouts each task had."""
        return np.diff(self.offsets)


def _outcomes(closed: IterationRecord) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Of each rollout that counts: its entry in the selection, its reward and whether it solved the task."""
    table = closed.finished.trajectories
    codes = {name: np.asarray(table.column(name)) for name in ("status", "role", "origin", "iteration", "group_id")}
    # What replay joined was counted when it was new.
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
    """The entry of the selection that each group came of, by its task; of several of one task, in their order.

    Groups that were derived from others have none (-1).
    """
    waiting: dict[str, list[int]] = {}
    if selection is not None and pool is not None:
        for entry, task_id in reversed(list(enumerate(pool.ids(selection.rows)))):
            waiting.setdefault(task_id, []).append(entry)
    of_groups = (waiting.get(task) for task in tasks)
    return np.array([left.pop() if left else -1 for left in of_groups], np.int64)
