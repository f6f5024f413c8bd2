"""Agent-R: truncate a failed trajectory at its first error, and continue it with a successful one (arXiv:2501.11425).

A good and a bad member of a group form a pair if V(good) - V(bad) > 0.2 and V(good) > 0.7. The actor marks each step of
the bad member as good, uncertain or bad. A revision trajectory begins with the bad member's turns up to and including
its first bad turn, as untrained context. It continues with one of ten revision thoughts, then with the good member's
turns after the turns that both share; both parts are trained. Members with V > 0.7 are trained unchanged, all other
members are not trained. Training is supervised, in rounds of collecting and training. Here the members of a pair are
independent; the published search grows them by MCTS.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, tree search: left out: members are independent, so the members of a pair may share only their task. The
      program `MonteCarlo` is a tree search.
    - C2, pairs: `Revise.pairs`.
    - C3, first error: `JudgeLocator`: the prefix continues after good and uncertain steps, and ends with the first bad
      one.
    - C4, revision trajectory: `Revise`, by `Branch.splice`.
    - C5, loss: `Imitation(aggregate="token_mean")`.

Differs:
    - General data: the paper mixes in general data, with a share that was not read; none here.
    - Thresholds: the sources give no numbers; 0.7 and 0.2 are proposals.
    - Bad members without a bad turn, or whose first bad turn ends the episode: the code uses the whole member as the
      prefix. Here the pair is left out, since an ended episode cannot continue.
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
    """Revise the bad member of each pair of a good and a bad member; train the revisions and the good members.

    Args:
        judge: locates the first bad step, by marks of the actor.
        gap: the values of a pair differ by more than this.
        good_above: the value of the better member of a pair is larger than this.
        reply: untrained context after the revision thought.

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
        """Return the members of the first round; after it, create the revisions and return None."""
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
        """Return the good and the bad member of each pair, by value; a member without a value is in no pair."""
        gaps = values[:, None] - values[None, :]
        index_pairs = np.argwhere((values[:, None] > self.good_above) & (gaps > self.gap))
        return [(int(good), int(bad)) for good, bad in index_pairs]

    async def _revise(self, group: Group, good: Branch, bad: Branch, fault: ErrorLocation | None, number: int) -> None:
        """Create the revision of a pair: the bad beginning, a thought, and the good end."""
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
