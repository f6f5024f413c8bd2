"""Independent rollouts: every trajectory of a group starts at the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core.component.options import option
from agentrl_core.env.base import ExtraColumn
from agentrl_core.rollout.branch_record import PRECISION
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout


@dataclass(frozen=True)
class Independent(Rollout):
    """As many trajectories from the prompt as the group is large, no forks.

    Args:
        replacements: where branches fail (an episode that breaks down), at most so many more are started for them.

    Example:
        >>> from agentrl_core.rollout import Independent
        >>> Independent().final_group_size(group_size=8)
        8
    """

    replacements: int = option(0, at_least=0)

    async def group(self, group: Group) -> None:
        """All of them side by side, then those that replace what failed."""
        left = self.replacements
        branches = await group.run(group.start_many(group.size))
        while count := min(left, sum(branch.status == "failed" for branch in branches)):
            left -= count
            branches = await group.run(group.start_many(count))


@dataclass(frozen=True)
class RecordPrecision(Independent):
    """Independent rollouts that say in which precision they were sampled.

    The step column `rollout_precision` is the number of bits of a weight (32, 16, 8, 4) in the engine that sampled the
    step's action, as the engine says (`Engine.precision`); NaN where it does not, and where nothing was sampled. What
    is cheap and not exact can so be told from the rest, also where several engines speak and where a run goes on with
    another one: by a component (`Where`), and by who looks at how far engine and trainer are apart.

    Every program can record it: `facts = {"rollout_precision": env.ExtraColumn("step")}`; with
    `ExtraColumn("trajectory")` it is a column of draws, where the last action of a trajectory counts.

    Source: Jet-RL arXiv:2601.14243, Sol-RL arXiv:2604.06916.

    Example:
        >>> from agentrl_core.rollout import RecordPrecision
        >>> RecordPrecision().facts
        {'rollout_precision': ExtraColumn(level='step', kind='number')}
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {PRECISION: ExtraColumn("step")}
