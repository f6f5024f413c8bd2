"""DARS: hard tasks get more rollouts, so that they weigh as much as medium ones (arXiv:2508.13755).

After the first N rollouts a task of which a share a succeeded (0.5 / N where none did) has the mass S(a) for each
rollout, and gets so many more that its total reaches that of a medium task:

    S = 2 a (1 - a),  M = N / 2          (`scale="none"`)         S = 2 sqrt(a (1 - a)),  M = N       (`scale="std"`)
    `equal`: ceil((M - N S) / S)         `hard`: ceil((2 (1 - a) M - N S) / S)         between 0 and N_max - N

Tasks with a of at least 1/2 get none. Advantages are those of the merged group, without a scale; groups in which all or
none succeed leave the loss. N = 8; N_max = 32 (`equal`) or 64 (`hard`). The paper makes two epochs of whole batches.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, mass of a group: `MoreForHard`, `scale="none"`; the other one is an option.
    - C2, equal treatment: `MoreForHard.more_of`.
    - C3, hardness weighted: the option `MoreForHard(kind="hard", at_most=64)`.
    - C4, merge and filter: `GroupFilter`, over both rounds.
    - C5, advantage: `GroupRelative(scale="none")`.
    - C6, loss: `Policy(aggregate="constant")`, 3072 tokens, the longest response.

Differs:
    - Sum over responses: not divided by their number in the code; here the mean over draws, so that learning rates
      below an optimizer that does not normalise differ by this factor.

Needs: the fact `success`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy
from agentrl_core.rollout import Group, RolloutSpec, RoundResult, Rounds
from agentrl_core.select import Band
from agentrl_core.weight import GroupFilter


@dataclass(frozen=True)
class MoreForHard(Rounds):
    """Spends a second round on tasks of which less than half of the first succeeded; the formula is that of the file.

    Args:
        kind: `equal`: every task weighs as much as a medium one; `hard`: hard ones weigh more.
        scale: how advantages are scaled: not at all (`none`), or by the standard deviation (`std`).
        at_most: N_max: the largest group.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.dars import MoreForHard
        >>> MoreForHard().more_of(solved=2, count=8)  # a = 1/4, S = 3/8: ceil((4 - 3) / S)
        3
    """

    kind: Literal["equal", "hard"] = "equal"
    scale: Literal["none", "std"] = "none"
    at_most: int = option(32, at_least=1)

    def more_of(self, solved: int, count: int) -> int:
        """How many more rollouts a task gets of which `solved` of `count` succeeded."""
        rate = solved / count if solved else 0.5 / count
        if rate >= 0.5:
            return 0
        mass, total = 2.0 * rate * (1.0 - rate), count / 2
        if self.scale == "std":
            mass, total = 2.0 * math.sqrt(rate * (1.0 - rate)), float(count)
        if self.kind == "hard":
            total *= 2.0 * (1.0 - rate)
        # A rounded quotient: 3.0000000000000004 is 3.
        wanted = math.ceil(round((total - count * mass) / mass, 9))
        return min(max(wanted, 0), max(self.at_most - count, 0))

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """The second round, whose size the formula gives."""
        if not rounds:
            return await super().next_round(group, rounds)
        known = int(np.isfinite(rounds[0].scores).sum())
        more = self.more_of(int(self.solved(rounds[0]).sum()), known) if len(rounds) == 1 and known else 0
        return RolloutSpec(more) if more else None


DARS = Recipe(
    name="dars",
    source="arXiv:2508.13755",
    rollout=MoreForHard(members=RolloutSpec(8), column="success"),
    advantage=GroupRelative(scale="none"),
    weight=GroupFilter(column="success", band=Band(std_above=0.0)),
    loss=Policy("constant", constant=3072),
    epochs=2,
)
