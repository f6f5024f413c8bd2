"""Agent-R: cut a failed trajectory at its first error, and continue it as a successful one.

Of the members of a group the best and the worst make a pair if V(good) - V(bad) > 0.2 and V(good) > 0.7. The actor
judges the steps of the bad one as good, uncertain or bad; up to and with the first bad turn it is context, not trained;
then comes one of ten revision thoughts, then the good one's turns from where the two part, both trained. The good
trajectory is trained as it is, the other members are not: supervised, in rounds of collecting and training. Pairs whose
bad member has no bad turn, or that part nowhere, are left out. Here pairs are those of independent members; the
published search grows them by MCTS. Both thresholds are proposals. Source: arXiv:2501.11425.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Imitation
from agentrl_core.rollout import Branch, Group, JudgeLocator, Prefix, RolloutSpec, RoundResult, Rounds

_THOUGHTS = (
    "Wait, that was not right. I try something else.",
    "I made a mistake there. Let me correct it.",
    "That did not help. I take another way.",
    "Looking back, my last step was wrong.",
    "I have been going in the wrong direction.",
    "My earlier plan does not work; here is a better one.",
    "I need to fix what I just did.",
    "This is not leading to the goal. I start over from here.",
    "I see my error now.",
    "Let me think again and do it right.",
)


@dataclass(frozen=True)
class Revise(Rounds):
    """Makes a revision out of the best and the worst member; it and the best are trained, the others only vote.

    Args:
        judge: how the actor judges steps.
        gap: the values of a pair differ by more.
        good_above: the value of its better one is larger.
        reply: what follows the revision thought, in the context.

    Example:
        >>> from agentrl_core.recipes.agent_r import Revise
        >>> Revise().gap
        0.2
    """

    judge: JudgeLocator = JudgeLocator(agent="policy", threshold=0.25)  # noqa: RUF009 - frozen
    gap: float = option(0.2, at_least=0)
    good_above: float = 0.7
    reply: str = option("Go on.", filled=True)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """The members; then the revision."""
        if not rounds:
            return self.members
        branches, values = rounds[0]
        highest, lowest = np.nan_to_num(values, nan=-np.inf), np.nan_to_num(values, nan=np.inf)
        good, bad = branches[int(highest.argmax())], branches[int(lowest.argmin())]
        best, worst = highest.max(), lowest.min()
        if best > self.good_above and best - worst > self.gap:
            await self._revise(group, good, bad)
        for branch in branches:
            if branch is not good or best <= self.good_above:
                branch.mask("not imitated")
        return None

    async def _revise(self, group: Group, good: Branch, bad: Branch) -> None:
        """The bad beginning, a thought, and the good end."""
        fault = await self.judge.locate(group, bad)
        texts = [[turn.text for turn in branch.turns] for branch in (good, bad)]
        common = next((place for place, (one, other) in enumerate(zip(*texts, strict=False)) if one != other), None)
        if fault is None or common is None:
            return
        turn = bad.turns[fault.step.turn]
        if turn.over:
            return
        revised = group.start(prefix=Prefix.of(bad, turn.index + 1))
        await revised.generate(max_tokens=0)
        if revised.over:
            return
        revised.write(_THOUGHTS[int(group.uniform("thought") * len(_THOUGHTS))])
        revised.inject(self.reply)
        revised.splice(good, good.turns[common].begin)
        group.drop([revised], "revised")


AGENT_R = Recipe(
    name="agent_r",
    source="arXiv:2501.11425",
    rollout=Revise(),
    advantage=GroupRelative(),
    loss=Imitation(aggregate="token_mean"),
)
