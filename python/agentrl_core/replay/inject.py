"""Inject stored trajectories into failed groups, before admission and all statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import column_name, option
from agentrl_core.component.component import Component
from agentrl_core.component.state import IterationRecord, State
from agentrl_core.data.replayed_draws import Draws, OldLogprob, Source
from agentrl_core.replay.base import Replay
from agentrl_core.replay.memory import Memory
from agentrl_core.replay.memory_rows import policy_versions, task_hashes

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class GroupFailed(Component):
    """Rule by which a group counts as failed: all given conditions on its values hold.

    Args:
        column: a draw column; draws without a value are ignored.
        best_at_most: the largest value is at most this; None: any.
        mean_below: the mean is smaller than this; None: any.
        std_below: the standard deviation is smaller than this (divided by the count less `ddof`); None: any.
        ddof: see `std_below`, 0 or 1.

    Example:
        >>> from agentrl_core.replay import GroupFailed
        >>> GroupFailed(best_at_most=0.0).of([0.0, -1.0]), GroupFailed(best_at_most=0.0).of([0.0, 1.0])
        (True, False)
    """

    phase: ClassVar[str] = "replay"

    column: str = column_name("score", level="draw")
    best_at_most: float | None = 0.0
    mean_below: float | None = None
    std_below: float | None = option(None, above=0)
    ddof: int = option(0, at_least=0, at_most=1)

    def of(self, values: object) -> bool:
        """Return whether a group with these values failed; a group without values did not."""
        numbers = np.asarray(values, np.float64)
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return False
        spread = numbers.std(ddof=self.ddof) if len(numbers) > self.ddof else 0.0
        return bool(
            (self.best_at_most is None or numbers.max() <= self.best_at_most)
            and (self.mean_below is None or numbers.mean() < self.mean_below)
            and (self.std_below is None or spread < self.std_below)
        )


@dataclass(frozen=True)
class Inject(Replay):
    """Inject remembered trajectories of the same task into a failed group, to give it a learning signal.

    The group is scored again with them. They vote in its statistics like its own members, unless `votes` is False.
    ARPO-GUI (arXiv:2505.16282): the first member of a group with std < .05 and mean < .2 is replaced by one of the last
    8 successes of the task. RAPO: a random member is replaced by the newest. DART: the newest success.

    Args:
        memory: the remembered trajectories.
        when: rule for failed groups.
        count: largest number per group.
        replaces: the replaced members: the `first` ones, `random` ones, the `worst` ones (smallest scores, ties: the
            first), or `none`: the group grows.
        source: value of `draws.source` for injected draws.
        old_logprob: old log-probs of injected draws, the denominator of their ratio.
        votes: whether injected draws count in the group's statistics.
        trained: whether injected draws are trained.

    Example:
        >>> from agentrl_core import replay
        >>> from agentrl_core.component import Where
        >>> success = replay.Memory(per_task=8, where=Where(column="outcome", above=0.1))
        >>> failed = replay.GroupFailed("outcome", best_at_most=None, mean_below=0.2, std_below=0.05)
        >>> replay.Inject(success, failed, replaces="first", old_logprob="recomputed").needs
        (draw('outcome'),)
    """

    memory: Memory = Memory(per_task=1)  # noqa: RUF009 - frozen
    when: GroupFailed = GroupFailed()
    count: int = option(1, at_least=1)
    replaces: Literal["first", "random", "worst", "none"] = "first"
    source: Source = "replay"
    old_logprob: OldLogprob = "behaviour"
    votes: bool = True
    trained: bool = True

    def initial_state(self) -> State:
        """Return the memory's first state."""
        return {"memory": self.memory.initial_state()}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the memory's next state."""
        return {"memory": self.memory.next(state["memory"], closed)}

    def inject(self, state: State, group: Batch, key: int) -> Draws | None:
        """Return the stored draws that join a failed group, or None."""
        if not group.num_draws or not self.when.of(group.column(self.when.column, "draw")):
            return None
        iteration = int(np.asarray(group.column("iteration", "draw"))[0])
        remembered_rows = self.memory.drawable(state["memory"], iteration, newest_version(group))
        remembered_rows = remembered_rows.take(remembered_rows.task == task_hashes(group)[0])
        room = group.num_draws if self.replaces != "none" else self.count
        rows, probability = self.memory.draw(remembered_rows, min(self.count, room), key)
        if not len(rows):
            return None
        rows = rows[:room]
        chosen = remembered_rows.take(rows)
        replaced = np.full(len(rows), -1) if self.replaces == "none" else self._members(group, key)[: len(rows)]
        return Draws.of(
            chosen.trajectory_id,
            votes_in=np.asarray(group.column("group_id", "draw"))[0],
            replaces=replaced,
            votes=self.votes,
            trained=self.trained,
            source=self.source,
            old_logprob=self.old_logprob,
            probability=None if probability is None else probability[: len(rows)],
            reason=chosen.reasons(f"its group failed by {self.when.column}"),
        )

    def _members(self, group: Batch, key: int) -> NDArray[np.int64]:
        """Return the row numbers of a group's draws in the order in which stored draws replace them."""
        count = group.num_draws
        if self.replaces == "random":
            order = _core.replay.race(np.arange(count, dtype=np.int64), key=_core.rng.structural_seed(key, 1))
        elif self.replaces == "worst":
            order = np.nan_to_num(np.asarray(group.column("score", "draw"), np.float64), nan=-np.inf)
        else:
            order = np.arange(count, dtype=np.float64)
        return np.argsort(order, kind="stable")


def newest_version(batch: Batch) -> int | None:
    """Return the newest policy version among the actions of a batch."""
    versions = policy_versions(batch, "max_policy_version")
    known = versions[np.isfinite(versions)]
    return int(known.max()) if len(known) else None
