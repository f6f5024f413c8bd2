"""AT-GRPO: sample several candidates from one state at every turn, compare them, and continue from the best one.

At each turn, the acting agents sample K = 4 candidates from the same state; every candidate is executed and rewarded.
The episode continues from the best candidate, for all agents (on ties, from the candidate with the lowest number). A
candidate is compared with the candidates of the same episode, agent and turn: A = (R - mean) / std. Every candidate
trains its own action, once. Its reward is alpha * r_team + r_local, from the environment. With `agents`, each agent
uses the engine of its name, or all agents use one engine. If several agents act together, a candidate is a joint move,
and the best one has the largest sum of its agents' rewards. Source: arXiv:2510.11062.

Equations:
    Read: the public code, notes, the abstract, and the reviews of the paper; the paper's text was not read.

    - C1, group: `group_by="group_id,instance,agent,turn"`.
    - C2, advantage: `GroupRelative`; a group of one has advantage 0 here, and its reward in the code
      (`singleton="raw"`).
    - C3, filters: left out: all are off by default in the code.
    - N1, reward: from the environment: alpha (1) times the team's reward, plus the agent's own reward.
    - N2, tree: `TurnCandidates`; not computed: it runs episodes, as the recipe's own test does.
    - N3, policies: left out: all agents train one policy here; separate policies need one loss each.

Differs:
    - Clip: the paper's objective has no clip, according to its reviews, because it trains on-policy; 0.2 here, as in
      the code.
    - Dual clip: 3 by verl's default; none here.
    - Candidates: 4, and 8 for mathematics, according to notes; 4 here.
    - Optimizer steps a batch: one per mini-batch of 256 in the code; 1 here.
    - Missing reward: 0 in the code; here the candidate is not trained and does not count in the group's statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, Rollout


@dataclass(frozen=True)
class TurnCandidates(Rollout):
    """Run one episode for each member; at each turn, choose the best of several candidates.

    The draw column `turn` is the number of the candidate's turn, `instance` the number of its episode.

    Args:
        agents: names of the agents of an episode; empty: a single agent.
        candidates: K, the number of candidates per turn.
        turns: largest number of turns per episode.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.at_grpo import TurnCandidates
        >>> TurnCandidates(candidates=4, turns=3).final_group_size(group_size=2)
        24
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {
        "turn": ExtraColumn("trajectory"),
        "instance": ExtraColumn("trajectory"),
    }

    agents: tuple[str, ...] = ()
    candidates: int = option(4, at_least=2)
    turns: int = option(4, at_least=1)

    async def group(self, group: Group) -> None:
        """Run the episodes one after another."""
        for instance in range(group.size):
            first, *others = self.agents or ("policy",)
            team = [group.start(agent=first)]
            team += [group.start(agent=name, episode=team[0]) for name in others]
            for turn in range(self.turns):
                team = await self.committed(group, team, {"turn": turn, "instance": instance})
                if not team:
                    break
            for branch in team:
                branch.stop("the last turn was taken")

    async def committed(self, group: Group, team: list[Branch], facts: Mapping[str, float]) -> list[Branch]:
        """Sample candidates from a team's state; return the best one's team, or no team if its episode is over."""
        for branch in team:
            await branch.begin()
        lead = next((branch for branch in team if branch.can_act), None)
        if lead is None:
            return []
        copies = lead.fork_many(self.candidates, train_prefix=False, facts=facts)
        for branch in team:
            branch.stop("continued by its candidates")
        teams = [[copy, *copy.peers] for copy in copies]
        acting = [[branch for branch in each if branch.can_act] for each in teams]
        turns = iter(await group.turn([branch for each in acting for branch in each]))
        rewards = [sum(next(turns).reward or 0.0 for _ in each) for each in acting]
        best = int(np.argmax(rewards))
        leader = copies[best]
        next_team = [] if leader.over else [leader.fork(train_prefix=False)]
        next_team += [peer for branch in next_team for peer in branch.peers]
        for each, movers in zip(teams, acting, strict=True):
            for branch in each:
                if branch not in movers:
                    branch.drop("it did not move")
                elif not branch.over:
                    branch.finish()
        return next_team

    def final_group_size(self, group_size: int) -> int:
        """Return the number of trajectories if no episode ends early: one per episode, turn, candidate and agent."""
        return group_size * self.candidates * self.turns * max(len(self.agents), 1)


AT_GRPO = Recipe(
    name="at_grpo",
    source="arXiv:2510.11062",
    rollout=TurnCandidates(),
    advantage=GroupRelative(group_by="group_id,instance,agent,turn"),
    loss=Policy(),
)
