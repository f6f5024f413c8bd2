"""Independent rollouts: every trajectory of a group starts at the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core.component.options import option
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout


@dataclass(frozen=True)
class Independent(Rollout):
    """As many trajectories from the prompt as the group is large, no forks.

    Args:
        replacements: where branches fail (an episode that breaks down), at most so many more are started for them.

    Example:
        >>> from agentrl_core.rollout import Independent
        >>> Independent().branches(group_size=8)
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
