"""Agent-R: cut a failed trajectory at its first error, and continue it as a successful one (arXiv:2501.11425).

Members good and bad of a group make a pair if V(good) - V(bad) > 0.2 and V(good) > 0.7. The actor judges the steps of
the bad one as good, uncertain or bad; up to and with the first bad turn it is context, not trained; then comes one of
ten revision thoughts, then the good one's turns after those that it shares with that beginning, both trained. Members
with V > 0.7 are trained as they are, the others are not: supervised, in rounds of collecting and training. Here pairs
are those of independent members; the published search grows them by MCTS.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, tree search: left out: members are independent, so a pair need not share more than its task; the program
      `MonteCarlo` is a search.
    - C2, pairs: `Revise.pairs`.
    - C3, first error: `JudgeLocator`: good or uncertain goes on, bad ends the prefix.
    - C4, revision trajectory: `Revise`, by `Branch.splice`.
    - C5, loss: `Imitation(aggregate="token_mean")`.

Differs:
    - General data: the paper mixes it in, in a share that was not read; none here.
    - Thresholds: no number in the sources; 0.7 and 0.2 are proposals.
    - Bad members without a bad turn, or whose first bad turn ends the episode: all of it is the prefix in the code;
      here the pair is left out, since an episode that is over cannot go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Imitation
from agentrl_core.rollout import Branch, ErrorLocation, Group, JudgeLocator, Prefix, RolloutSpec, RoundResult, Rounds

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """Makes a revision out of each pair of a good and a bad member; it and the good ones are trained.

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
        pairs = self.pairs(values)
        faults = {bad: await self.judge.locate(group, branches[bad]) for bad in sorted({bad for _, bad in pairs})}
        for number, (good, bad) in enumerate(pairs):
            await self._revise(group, branches[good], branches[bad], faults[bad], number)
        for branch, value in zip(branches, values, strict=True):
            if not value > self.good_above:
                branch.mask("not imitated")
        return None

    def pairs(self, values: NDArray[np.float64]) -> list[tuple[int, int]]:
        """Return the good and the bad member of each pair, by their values; one without a value is in none."""
        gaps = values[:, None] - values[None, :]
        found = np.argwhere((values[:, None] > self.good_above) & (gaps > self.gap))
        return [(int(good), int(bad)) for good, bad in found]

    async def _revise(self, group: Group, good: Branch, bad: Branch, fault: ErrorLocation | None, number: int) -> None:
        """The bad beginning, a thought, and the good end."""
        if fault is None:
            return
        turn = bad.turns[fault.step.turn]
        shared = zip(good.turns, bad.turns[: turn.index + 1], strict=False)
        common = sum(1 for _ in takewhile(lambda both: both[0].text == both[1].text, shared))
        if turn.over or common == len(good.turns):
            return
        revised = group.start(prefix=Prefix.of(bad, turn.index + 1))
        await revised.generate(max_tokens=0)
        if revised.over:
            return
        revised.write(_THOUGHTS[int(group.uniform("thought", number) * len(_THOUGHTS))])
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
