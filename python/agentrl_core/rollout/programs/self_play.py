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

    Agents that move at the same time are answered together; what an agent is told while others move is its next
    context. An agent is spoken for by the engine of its name, or by the collector's first: so one model plays all
    roles, or each has its own. Compare agents apart with `group_by="group_id,agent"`, or pay those of a match together
    with `recipes.cory.TeamScore`. The step column `joint_move` numbers the moves of an episode from 0: agents that move
    at the same time have the same number. Sources: MARFT (arXiv:2504.16129), MARS (arXiv:2510.15414).

    Args:
        agents: names of the agents that the environment's episodes are played by.
        helpers: names of the agents whose trajectories are kept and never drawn (a fixed referee).

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
        """Agents have names, each its own."""
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
        """Run one episode with a branch per agent."""
        branches: list[Branch] = []
        for agent in self.agents:
            role: Role | None = "helper" if agent in self.helpers else None
            branches.append(group.start(agent=agent, episode=branches[0] if branches else None, role=role))
        return branches

    def final_group_size(self, group_size: int) -> int:
        """As many for each match as have a part in training."""
        return group_size * (len(self.agents) - len(self.helpers))
