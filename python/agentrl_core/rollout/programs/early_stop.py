"""Stop stragglers when enough other trajectories have ended."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from agentrl_core.component.options import option
from agentrl_core.rollout.async_tasks import cancel
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Cohort, Rollout


@dataclass(frozen=True)
class EarlyStop(Rollout):
    """Stop the slowest trajectories instead of waiting for them.

    For N trajectories of a selection in groups of K, running ones are stopped as soon as

        ended >= ceil(of_all * N)   and, in every group,   ended >= round(of_group * K)

    They are stored as aborted, without draws, so groups have unequal sizes. The choice depends on timing. It is
    recorded before any trajectory is stopped, so that a resumed run stops the same ones. It biases training towards
    short trajectories; `Collector(staleness=1)` avoids waiting without stopping any. Source: LOOP (arXiv:2502.01600),
    whose public recipe has 0.9 and 0.75, and whose default is 1.

    Args:
        of_all: share of the trajectories of a selection.
        of_group: share of the trajectories of each group.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.rollout import EarlyStop
        >>> EarlyStop(of_all=0.9).enough([5, 6, 6], [6, 6, 6]), EarlyStop(of_all=0.9).enough([4, 6, 6], [6, 6, 6])
        (True, False)
    """

    of_all: float = option(0.9, above=0, at_most=1)
    of_group: float = option(0.75, above=0, at_most=1)

    def enough(self, ended: list[int], sizes: list[int]) -> bool:
        """Return whether enough trajectories have ended, of each group and in total, to stop the others."""
        of_each = all(count >= round(self.of_group * size) for count, size in zip(ended, sizes, strict=True))
        return of_each and sum(ended) >= math.ceil(self.of_all * sum(sizes))

    async def cohort(self, groups: Cohort) -> None:
        """Run all groups concurrently, until enough trajectories have ended."""
        race = _StragglerRace(self, groups)
        running = asyncio.ensure_future(groups.run_each(race.group))
        referee = asyncio.ensure_future(race.stop_the_late())
        try:
            await asyncio.wait([running, referee], return_when=asyncio.FIRST_COMPLETED)
            if referee.done():
                referee.result()
            await running
        finally:
            await cancel([running, referee])


class _StragglerRace:
    """Tracks which trajectories of a cohort have ended, and which of them ended in time."""

    def __init__(self, program: EarlyStop, groups: Cohort) -> None:
        self._program = program
        self._groups = groups
        self._branches: dict[str, Branch] = {}
        self._ended: dict[str, set[str]] = {group.name: set() for group in groups}
        self._changed = asyncio.Event()
        self._in_time: set[str] | None = None

    async def group(self, group: Group) -> None:
        """Run the trajectories of a group, each to its end or until it is stopped."""
        branches = group.start_many(group.size)
        self._branches.update((branch.name, branch) for branch in branches)
        await group.run(branches, self._branch)

    async def _branch(self, branch: Branch) -> None:
        await self._program.branch(branch)
        if self._in_time is not None and branch.name not in self._in_time:
            _remove(branch)
            return
        self._ended[branch.group.name].add(branch.name)
        self._changed.set()

    async def stop_the_late(self) -> None:
        """Wait until enough trajectories have ended, and stop the others."""
        in_time = set(await self._groups.side_effect("in time", self._enough))
        # After a kill the choice is read from the rollout log, and the others run to their ends again.
        while not in_time <= set().union(*self._ended.values()):
            await self._change()
        self._in_time = in_time
        for name, branch in self._branches.items():
            if name not in in_time:
                _remove(branch)

    async def _enough(self) -> list[str]:
        sizes = [group.size for group in self._groups]
        while not self._program.enough([len(ended) for ended in self._ended.values()], sizes):
            await self._change()
        return sorted(set().union(*self._ended.values()))

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _remove(branch: Branch) -> None:
    """Stop a trajectory, or drop it from the batch if it has ended meanwhile."""
    if not branch.over:
        branch.stop("late", status="aborted")
    elif branch.status in ("finished", "truncated"):
        branch.drop("late")
