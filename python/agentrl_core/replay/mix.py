"""Mix: add stored trajectories to the batch, after admission."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import option
from agentrl_core.component.state import IterationRecord, State
from agentrl_core.data.replayed_draws import Draws, OldLogprob, Source
from agentrl_core.data.table_codes import CODES
from agentrl_core.replay.base import Replay
from agentrl_core.replay.inject import newest_version
from agentrl_core.replay.memory import Memory
from agentrl_core.replay.memory_rows import task_hashes

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Mix(Replay):
    """Mix remembered trajectories into the batch, a fixed number or a share of the batch.

    Groups from a memory of groups stay intact, keep their ids and vote among themselves. For a memory of trajectories,
    `joins` decides in which group each votes. DOTS (arXiv:2506.05316): (1 - sigma) B groups of a FIFO of 512. ReMix: a
    share of the last two iterations. M2PO: the whole batch from 64 iterations ago, `replaces=True, share=1`. A chain of
    them mixes several memories, each with its quota. Each component gets the batch of those before it, and draws no
    trajectory twice.

    Args:
        memory: the remembered trajectories.
        count: number of trajectories or groups to add; None: use `share`.
        share: share of the resulting batch, from 0 to 1, in trajectories or groups, rounded down; 1 needs `replaces`.
        replaces: whether added draws replace fresh draws (or whole groups), starting from the end of the batch, so that
            the batch does not grow. Replaced draws are stored but not trained.
        joins: group in which trajectories vote: that of their `task` in the batch (left out if the batch has no group
            of the task), a new group for each (`alone`), or `one` new group for all.
        source: value of `draws.source` for added draws.
        old_logprob: old log-probs of added draws, the denominator of their ratio.
        votes: whether added draws count in statistics.
        trained: whether added draws are trained.

    Example:
        >>> from agentrl_core import replay
        >>> replay.Mix(replay.Memory(capacity=512, unit="group"), share=0.5, old_logprob="recomputed").share
        0.5
    """

    memory: Memory = Memory(unit="group")  # noqa: RUF009 - frozen
    count: int | None = option(None, at_least=1)
    share: float = option(0.5, at_least=0, at_most=1)
    replaces: bool = False
    joins: Literal["task", "alone", "one"] = "alone"
    source: Source = "replay"
    old_logprob: OldLogprob = "behaviour"
    votes: bool = True
    trained: bool = True

    def check_options(self) -> None:
        """Require `replaces` for a batch of stored draws alone."""
        self.require(
            self.share < 1.0 or self.replaces,
            "share",
            "it leaves no fresh draws: give a number below 1, or replaces=True",
        )

    def initial_state(self) -> State:
        """Return the memory's first state."""
        return {"memory": self.memory.initial_state()}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the memory's next state."""
        return {"memory": self.memory.next(state["memory"], closed)}

    def mix(self, state: State, batch: Batch, key: int) -> Draws | None:
        """Return the draws that join the batch; None: no draws."""
        groups = self.memory.unit == "group"
        group_ids = np.asarray(batch.column("group_id", "draw"))
        size = len(np.unique(group_ids)) if groups else len(group_ids)
        count = self._wanted(size)
        if not count:
            return None
        remembered_rows = self.memory.drawable(state["memory"], _iteration(batch), newest_version(batch))
        # Fresh draws do not have the store's ids yet.
        present_ids = np.asarray(group_ids if groups else batch.column("trajectory_id", "draw"))[~_fresh(batch)]
        remembered_rows = remembered_rows.take(
            ~np.isin(remembered_rows.group_id if groups else remembered_rows.trajectory_id, present_ids)
        )
        if self.joins == "task" and not groups:
            remembered_rows = remembered_rows.take(np.isin(remembered_rows.task, task_hashes(batch)))
        rows, probability = self.memory.draw(remembered_rows, count, key)
        if not len(rows):
            return None
        chosen = remembered_rows.take(rows)
        votes_in: NDArray[np.int64] = np.full(len(rows), Draws.OWN_GROUP, np.int64)
        new_group = np.zeros(len(rows), np.int32)
        if not groups:
            votes_in = np.full(len(rows), Draws.NEW_GROUP, np.int64)
            if self.joins == "task":
                votes_in = _groups_of(batch, chosen.task)
            new_group = np.zeros(len(rows), np.int32) if self.joins == "one" else np.arange(len(rows), dtype=np.int32)
        return Draws.of(
            chosen.trajectory_id,
            votes_in=votes_in,
            new_group=new_group,
            replaces=self._replaced(batch, chosen.group_id if groups else chosen.trajectory_id),
            votes=self.votes,
            trained=self.trained,
            source=self.source,
            old_logprob=self.old_logprob,
            probability=probability,
            reason=chosen.reasons(f"mixed in, {self.memory.order}"),
        )

    def _wanted(self, size: int) -> int:
        """Return how many trajectories or groups join a batch of this size."""
        if self.count is not None:
            return min(self.count, size) if self.replaces else self.count
        return int(self.share * size) if self.replaces else int(self.share / (1.0 - self.share) * size + 1e-9)

    def _replaced(self, batch: Batch, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the fresh draw that each stored draw replaces, or -1; in a group, up to the smaller of both sizes."""
        replaced = np.full(len(units), -1, np.int64)
        if not self.replaces:
            return replaced
        fresh = np.flatnonzero(_fresh(batch))
        if self.memory.unit == "trajectory":
            common = min(len(units), len(fresh))
            replaced[:common] = fresh[len(fresh) - common :]
            return replaced
        group_ids = np.asarray(batch.column("group_id", "draw"))
        for group, unit in zip(
            list(dict.fromkeys(group_ids[fresh].tolist()))[::-1], dict.fromkeys(units.tolist()), strict=False
        ):
            places, rows = np.flatnonzero(group_ids == group), np.flatnonzero(units == unit)
            common = min(len(places), len(rows))
            replaced[rows[:common]] = places[:common]
        return replaced


def _fresh(batch: Batch) -> NDArray[np.bool_]:
    return np.asarray(np.asarray(batch.column("source", "draw")) == CODES["source"].index("fresh"))


def _iteration(batch: Batch) -> int:
    iterations = np.asarray(batch.column("iteration", "draw"))
    if len(iterations):
        return int(iterations[0])
    return int(np.asarray(batch.trajectories.column("iteration")).max(initial=0))


def _groups_of(batch: Batch, tasks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first group of the batch for each of the given task hashes."""
    known, first = np.unique(task_hashes(batch), return_index=True)
    groups: NDArray[np.int64] = np.asarray(batch.column("group_id", "draw"))[first[np.searchsorted(known, tasks)]]
    return groups
