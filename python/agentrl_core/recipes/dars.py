"""DARS: give hard tasks more rollouts, so that they weigh as much as medium ones (arXiv:2508.13755).

After the first N rollouts of a task, let a be the share of successes (0.5 / N if none succeeded). Each rollout has the
mass S(a). The task gets as many further rollouts as its total mass needs to reach that of a medium task:

    S = 2 a (1 - a),  M = N / 2          (`scale="none"`)         S = 2 sqrt(a (1 - a)),  M = N       (`scale="std"`)
    `equal`: ceil((M - N S) / S)         `hard`: ceil((2 (1 - a) M - N S) / S)         between 0 and N_max - N

Tasks with a of at least 1/2 get no further rollouts. Advantages compare the rollouts of both rounds, without a scale.
Groups in which all or no rollouts succeed leave the loss. N = 8; N_max = 32 (`equal`) or 64 (`hard`). The paper and
this recipe train two epochs on each batch, of one optimizer step each.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, mass of a group: `MoreForHard`, `scale="none"`; `scale="std"` is an option.
    - C2, equal treatment: `MoreForHard.more_of`.
    - C3, hardness weighted: the option `MoreForHard(kind="hard", at_most=64)`.
    - C4, merge and filter: `GroupFilter`, over the rollouts of both rounds.
    - C5, advantage: `GroupRelative(scale="none")`.
    - C6, loss: `Policy(aggregate="constant")`, with 3072 tokens, the longest response, as the constant.

Differs:
    - Sum over responses: not divided by their number in the code; here the loss is the mean over draws. With an
      optimizer that does not normalise gradients, learning rates differ by this factor.

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
    """Run a second round for tasks with a success rate below 1/2 in the first; the module has the formula.

    Args:
        kind: `equal`: every task weighs as much as a medium one; `hard`: hard tasks weigh more.
        scale: how advantages are scaled: not at all (`none`), or by the standard deviation (`std`).
        at_most: N_max, the size of the largest group.

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
        """Return the number of further rollouts of a task with `solved` successes in `count` rollouts."""
        rate = solved / count if solved else 0.5 / count
        if rate >= 0.5:
            return 0
        mass, total = 2.0 * rate * (1.0 - rate), count / 2
        if self.scale == "std":
            mass, total = 2.0 * math.sqrt(rate * (1.0 - rate)), float(count)
        if self.kind == "hard":
            total *= 2.0 * (1.0 - rate)
        # Round before ceil, so that 3.0000000000000004 counts as 3.
        further = math.ceil(round((total - count * mass) / mass, 9))
        return min(max(further, 0), max(self.at_most - count, 0))

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the first round, then a second one of the size that the formula gives, if it is not 0."""
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
