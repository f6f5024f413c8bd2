"""Multi-agent games: each agent of an episode is a branch."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core.component.options import option
from agentrl_core.exceptions import RecipeError
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.branch_state import Role
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout


@dataclass(frozen=True)
class SelfPlay(Rollout):
    """Play one multi-agent episode per member to its end: self-play, debates, teams.

    Agents that move at the same time share one environment step; observations during other agents' moves are part of
    the next context. Each agent uses the engine of its name, otherwise the collector's first: so one model plays all
    roles, or each role has its own. Compare agents separately with `group_by="group_id,agent"`, or reward those of an
    episode together with `reward.TeamScore`. Sources: MARFT (arXiv:2504.16129), MARS (arXiv:2510.15414).

    Args:
        agents: comma-joined names of the environment's agents.
        helpers: comma-joined names of agents that are stored but never drawn (a fixed referee).

    Raises:
        RecipeError: no agent is named, or a helper is not an agent.

    Example:
        >>> from agentrl_core.rollout import SelfPlay
        >>> SelfPlay(agents="spy,civilian,judge", helpers="judge").final_group_size(group_size=4)
        8
    """

    agents: str = option("")
    helpers: str = option("")

    def check_options(self) -> None:
        """Require unique names of agents."""
        names = _names(self.agents)
        if not names or len(set(names)) < len(names):
            raise RecipeError(f"SelfPlay: agents={self.agents!r}; give the agents' names, each once, joined by commas")
        if not set(_names(self.helpers)) <= set(names):
            raise RecipeError(f"SelfPlay: helpers={self.helpers!r}; give names of agents={self.agents!r}")

    async def group(self, group: Group) -> None:
        """Run all episodes concurrently."""
        matches = [self.play_episode(group) for _ in range(group.size)]
        for branches in matches:
            await branches[0].begin()
        while movers := [branch for branches in matches for branch in branches if branch.can_act]:
            await group.turn(movers)
        for branches in matches:
            for branch in branches:
                branch._end_with_episode()

    def play_episode(self, group: Group) -> list[Branch]:
        """Run one episode with a branch per agent."""
        branches: list[Branch] = []
        for agent in _names(self.agents):
            role: Role | None = "helper" if agent in _names(self.helpers) else None
            branches.append(group.start(agent=agent, episode=branches[0] if branches else None, role=role))
        return branches

    def final_group_size(self, group_size: int) -> int:
        """Return the number of trained agents per episode times the group size."""
        return group_size * (len(_names(self.agents)) - len(_names(self.helpers)))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
