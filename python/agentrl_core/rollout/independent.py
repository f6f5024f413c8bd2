"""Independent rollouts: every trajectory of a group starts at the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core.rollout.planner import Planner


@dataclass(frozen=True)
class Independent(Planner):
    """`group_size` trajectories from the prompt, no forks.

    Example:
        >>> from agentrl_core.rollout import Independent
        >>> Independent().roots(group_size=8)
        8
    """

    def roots(self, group_size: int) -> int:
        """All of them."""
        return group_size
