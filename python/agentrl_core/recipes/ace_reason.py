"""AceReason-Nemotron: mathematics, then code, then mathematics, with longer answers by stage (arXiv:2505.16400).

    A = (R - mean) / std of the group,   L = - mean over tokens of r A, at r = 1

A batch has exactly one optimizer step, so there is nothing to clip and no divergence to pay for. Three stages of
mathematics are followed by two of code and a last one of mathematics. An action has at most 8192, 16384 and 24576, then
24000 and 32768, at last 32768 tokens; one that is cut has no answer, so it is wrong. In the stages of mathematics from
24576 tokens on, and in the second one of code, tasks of which more than 6 of 16 attempts are right leave the pool when
they come up. The length of a stage is not stated; here 125 iterations.

Equations:
    Read: the paper's sections 3.2 to 3.4, an excerpt, and notes of others.

    - N1, objective: `Policy`; its clip range does not act in the one step of a batch.
    - N2, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it; which std is not stated.
    - N3, reward: the environment's, 1 or 0.
    - N4, stages of length: `LengthStages`, and `Curriculum`: code opens after three stages, and `earlier` goes back to
      mathematics after five.
    - N5, filter by pass rate: `PoolFilter(attempts=16)`, whose `at_most` is 6/16 in those stages, else 1.
    - N6, difficulty of code: left out: the data are chosen by another model's samples before the run.

Differs:
    - Length of a stage: in the paper accuracy falls and comes back within 1000 to 2000 steps of the first stage, so its
      stages are longer; change `every`, `Curriculum` and both schedules together.
    - Pass rate: of all attempts in the run, at least 16; which attempts count, and when tasks of code became easy, is
      not stated.
    - Group size: 8 in the first stage of mathematics and of code, 16 later; the user's choice here.
    - Temperature of code: 0.6, rising to 1.0 in its second stage; the collector's here.

Needs: the pool's column `domain`, of `math` and `code`; sampling of at least 32768 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Rollout
from agentrl_core.select import ComposedSelector, Curriculum, PoolFilter


@dataclass(frozen=True)
class LengthStages(Rollout):
    """Limit the tokens of an action in stages: in iteration n the limit is limits[min(floor(n / every), S - 1)].

    An action that is longer is cut, and the environment gets what there is of it. Validation has no limit.

    Args:
        limits: the limits of the S stages, in tokens.
        every: iterations of a stage.

    Raises:
        RecipeError: a limit is no positive whole number.

    Example:
        >>> from agentrl_core.recipes.ace_reason import LengthStages
        >>> program = LengthStages(limits=(8192, 16384), every=100)
        >>> [program.limit(iteration) for iteration in (0, 99, 100, 250)]
        [8192, 8192, 16384, 16384]
    """

    limits: tuple[int, ...] = option((8192, 16384, 24576, 32768), at_least=1)
    every: int = option(125, at_least=1)

    def limit(self, iteration: int) -> int:
        """The most tokens of an action."""
        return self.limits[min(iteration // self.every, len(self.limits) - 1)]

    async def branch(self, branch: Branch) -> None:
        """Turns whose actions are cut at the limit."""
        limit = self.limit(branch.group.key[0]) if branch.group.mode == "train" else None
        while not branch.over:
            await branch.generate(max_tokens=limit)
            if not branch.over:
                await branch.submit()


_EVERY = 125
_PASS_RATE = Schedule(  # from the third stage on, but not in the first one of code
    1.0,
    6 / 16,
    iterations=2 * _EVERY,
    kind="step",
    then=Schedule(1.0, 6 / 16, iterations=_EVERY, begin=3 * _EVERY, kind="step"),
)

ACE_REASON = Recipe(
    name="ace_reason",
    source="arXiv:2505.16400",
    select=ComposedSelector(
        stage=Curriculum(
            "domain",
            "math,code",
            above=None,
            iterations=3 * _EVERY,
            earlier=Schedule(0.0, 1.0, iterations=5 * _EVERY, kind="step"),
        ),
        pool=PoolFilter(at_most=_PASS_RATE, attempts=16),
    ),
    rollout=LengthStages(limits=(8192, 16384, 24576, 24000, 32768, 32768), every=_EVERY),
    advantage=GroupRelative(),
    loss=Policy(),
)
