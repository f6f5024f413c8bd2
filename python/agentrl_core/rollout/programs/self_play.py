"""Multi-agent games: each agent of an episode is a branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core.data.forest import Role
from agentrl_core.env.base import ExtraColumn
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.branch_record import JOINT_MOVE
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.multi_agent import end_with_episode
from agentrl_core.rollout.program import Rollout


@dataclass(frozen=True)
class SelfPlay(Rollout):
    """Play one multi-agent episode per member to its end: self-play, debates, teams.

    The environment answers agents that move at the same time together. Observations of an agent while others move are
    in its next context. Each agent uses the engine with its name, otherwise the collector's first engine: so one model
    plays all roles, or each role has its own. To compare each agent only with itself, use `group_by="group_id,agent"`;
    to give the agents of an episode a common score, use `recipes.cory.TeamScore`. The step column `joint_move` numbers
    the moves of an episode from 0; agents that move at the same time have the same number. Sources: MARFT
    (arXiv:2504.16129), MARS (arXiv:2510.15414).

    Args:
        agents: names of the agents in the environment's episodes.
        helpers: names of the agents whose trajectories are stored but never drawn (a fixed referee).

    Raises:
        RecipeError: no agent is named, or a helper is not an agent.

    Example:
        >>> from agentrl_core.rollout import SelfPlay
        >>> SelfPlay(agents=("spy", "civilian", "judge"), helpers=("judge",)).final_group_size(group_size=4)
        8
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {JOINT_MOVE: ExtraColumn("step")}

    agents: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()

    def check_options(self) -> None:
        """Require unique names of agents, and helpers that are agents."""
        is_once = 0 < len(self.agents) == len(set(self.agents))
        self.require(is_once, "agents", "give the names of the agents, each once")
        self.require(set(self.helpers) <= set(self.agents), "helpers", f"give names of agents={self.agents!r}")

    async def group(self, group: Group) -> None:
        """Run all episodes concurrently."""
        matches = [self.play_episode(group) for _ in range(group.size)]
        for branches in matches:
            await branches[0].begin()
        while movers := [branch for branches in matches for branch in branches if branch.can_act]:
            await group.turn(movers)
        for branches in matches:
            for branch in branches:
                end_with_episode(branch, "finished")

    def play_episode(self, group: Group) -> list[Branch]:
        """Start one episode with a branch for each agent, and return the branches."""
        branches: list[Branch] = []
        for agent in self.agents:
            role: Role | None = "helper" if agent in self.helpers else None
            branches.append(group.start(agent=agent, episode=branches[0] if branches else None, role=role))
        return branches

    def final_group_size(self, group_size: int) -> int:
        """Return the number of drawn trajectories: for each member one of every agent that is not a helper."""
        return group_size * (len(self.agents) - len(self.helpers))
