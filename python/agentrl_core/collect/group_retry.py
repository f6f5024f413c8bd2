"""Retry rejected groups in the next round: with new rollouts, or with more members."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.batch import Batch
from agentrl_core.select import Admission, Selection


@dataclass(frozen=True, eq=False)
class GroupRetries:
    """Groups to retry in the next round, one row each; they come first in the selection of that round.

    Attributes:
        selection: first selection of each group.
        tried: number of earlier retries of each task.
        members: existing members of groups that are extended: their places among the iteration's trajectories, in
            order; empty for groups that are rolled out anew.
    """

    selection: Selection
    tried: NDArray[np.int64]
    members: list[NDArray[np.int64]]

    @classmethod
    def of(
        cls,
        batch: Batch,
        rejected: NDArray[np.bool_],
        entries: NDArray[np.int64],
        selection: Selection,
        before: GroupRetries | None,
        admission: Admission,
    ) -> GroupRetries:
        """Return the retries of a round's rejected groups.

        Args:
            batch: the rollouts of the round.
            rejected: mask of rejected groups.
            entries: selection row of each group; -1: none.
            selection: selection of the round.
            before: the retries in its first rows; None: no retries.
            admission: decides what rejected groups become.
        """
        tried = np.zeros(len(selection), np.int64)
        if before is not None:
            tried[: len(before)] = before.tried
        retried = [
            (group, int(entry), rule)
            for group, entry in enumerate(entries.tolist())
            if rejected[group] and entry >= 0 and (rule := admission.becomes(int(tried[entry]))) != "replace"
        ]
        rows = np.array([entry for _, entry, _ in retried], np.int64)
        keys = batch.keys("group_id", "draw")
        places = np.searchsorted(_rolled_out(batch), np.asarray(batch.column("trajectory_id", "draw")))
        members = [places[keys == group] if rule == "extend" else places[:0] for group, _, rule in retried]
        return cls(selection.take(rows), tried[rows] + 1, members)

    def __len__(self) -> int:
        """Number of groups."""
        return len(self.selection)

    @property
    def extends(self) -> bool:
        """Whether an existing group gets more members."""
        return any(len(members) for members in self.members)

    def joined(self, before: Batch, fresh: Batch, entries: NDArray[np.int64]) -> tuple[Batch, NDArray[np.int64]]:
        """Return a batch of the admitted groups and those to judge, and the selection row of each group, -1: admitted.

        Args:
            before: the earlier rounds, with draws of admitted groups.
            fresh: the new rollouts.
            entries: selection row of each of its groups; -1: none.

        Returns:
            The batch, and the selection row of each group: -1 for admitted ones.
        """
        whole, admitted = Batch.concat([before, fresh]), before.num_draws
        known, of_trajectory = _rolled_out(whole), _groups_of(whole)
        standing = [(entry, known[places]) for entry, places in enumerate(self.members) if len(places)]
        ids = np.asarray(whole.column("trajectory_id", "draw"), np.int64)[admitted:]
        groups = np.asarray(whole.column("group_id", "draw"), np.int64)[admitted:].copy()
        rows = entries[fresh.keys("group_id", "draw")]
        for entry, members in standing:
            groups[rows == entry] = of_trajectory[int(members[0])]
        # Existing members come first.
        ids = np.concatenate([*(members for _, members in standing), ids])
        rows = np.concatenate([*(np.full(len(members), entry) for entry, members in standing), rows])
        joined = [np.full(len(members), of_trajectory[int(members[0])]) for _, members in standing]
        groups = np.concatenate([*joined, groups])
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        order = np.argsort(first[inverse], kind="stable")  # members of a group are contiguous
        iteration = int(np.asarray(fresh.trajectories.column("iteration"))[0])
        kept = whole.select_draws(np.arange(admitted))
        batch = kept.with_draws(ids[order], group_ids=groups[order], source="fresh", iteration=iteration)
        return batch, np.concatenate([np.full(before.num_groups, -1), rows[np.sort(first)]])


def matching(raw: Batch, batch: Batch) -> NDArray[np.int64]:
    """Return for each group of `raw`, in order, its group id in `batch`; replay may have changed the ids."""
    keys, ids = raw.keys("group_id", "draw"), np.asarray(raw.column("trajectory_id", "draw"))
    places = np.searchsorted(_rolled_out(raw), ids[np.unique(keys, return_index=True)[1]])
    of_trajectory = _groups_of(batch)
    return np.array([of_trajectory[int(each)] for each in _rolled_out(batch)[places]], np.int64)


def group_ids(batch: Batch) -> NDArray[np.int64]:
    """Return the ids of the groups of a batch in the order of admission."""
    ids = np.asarray(batch.column("group_id", "draw"), np.int64)
    return ids[np.sort(np.unique(ids, return_index=True)[1])]


def _rolled_out(batch: Batch) -> NDArray[np.int64]:
    """Return the sorted ids of a batch's trajectories of its newest iteration: rolled out in it, not replayed."""
    table = batch.trajectories
    iterations = np.asarray(table.column("iteration"))
    return np.sort(np.asarray(table.column("trajectory_id"), np.int64)[iterations == iterations.max(initial=0)])


def _groups_of(batch: Batch) -> dict[int, int]:
    """Return the group in which each trajectory was rolled out, by trajectory id."""
    table = batch.trajectories
    ids, groups = (np.asarray(table.column(name)).tolist() for name in ("trajectory_id", "group_id"))
    return dict(zip(ids, groups, strict=True))
