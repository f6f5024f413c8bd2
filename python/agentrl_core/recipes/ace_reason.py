"""AceReason-Nemotron: train on mathematics, code and mathematics, with a length limit per stage (arXiv:2505.16400).

    A = (R - mean) / std of the group,   L = - mean over tokens of r A, at r = 1

A batch has exactly one optimizer step, so the ratio r is 1 and is never clipped. There is no KL penalty. Three stages
of mathematics are followed by two of code and a last one of mathematics. An action has at most 8192, 16384 and 24576
tokens in the stages of mathematics, then 24000 and 32768 in code, and 32768 in the last stage. An action that is cut
has no answer, so it is wrong. In the stages of mathematics from 24576 tokens on, and in the second stage of code, a
sampled task leaves the pool if more than 6 of 16 attempts were right. The length of a stage is not stated; here it is
125 iterations.

Equations:
    Read: the paper's sections 3.2 to 3.4, an excerpt, and notes of others.

    - N1, objective: `Policy`; its clip range has no effect, since a batch has one step.
    - N2, advantage: `GroupRelative`; its std divides by n - 1, and 1e-6 is added to it. The sources do not state which
      std is used.
    - N3, reward: 1 or 0, from the environment.
    - N4, stages of length: `LengthStages`, and `Curriculum`, which opens code after three stages; its option `earlier`
      returns to mathematics after five.
    - N5, filter by pass rate: `PoolFilter(attempts=16)`; its `at_most` is 6/16 in the stages named above, otherwise 1.
    - N6, difficulty of code: left out: tasks are chosen before the run, by the samples of another model.

Differs:
    - Length of a stage: in the paper, accuracy falls and recovers within 1000 to 2000 steps of the first stage, so its
      stages are longer. Change `every`, `Curriculum` and both schedules together.
    - Pass rate: computed from all attempts in the run, at least 16. The sources state neither which attempts count, nor
      when tasks of code became easy.
    - Group size: 8 in the first stage of mathematics and of code, 16 later; here the user chooses it.
    - Temperature of code: 0.6, rising to 1.0 in its second stage; here it is the collector's.

Needs: the pool's column `domain`, with the values `math` and `code`; sampling of at least 32768 tokens.
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
    """Limit the tokens of an action in stages: limits[min(n // every, len(limits) - 1)] in iteration n, from 0.

    A longer action is cut, and the environment receives the cut text. Validation has no limit.

    Args:
        limits: limits of the stages, in tokens.
        every: number of iterations per stage.

    Raises:
        RecipeError: a limit is not a positive integer.

    Example:
        >>> from agentrl_core.recipes.ace_reason import LengthStages
        >>> program = LengthStages(limits=(8192, 16384), every=100)
        >>> [program.limit(iteration) for iteration in (0, 99, 100, 250)]
        [8192, 8192, 16384, 16384]
    """

    limits: tuple[int, ...] = option((8192, 16384, 24576, 32768), at_least=1)
    every: int = option(125, at_least=1)

    def limit(self, iteration: int) -> int:
        """Return the largest number of tokens of an action in an iteration."""
        return self.limits[min(iteration // self.every, len(self.limits) - 1)]

    async def branch(self, branch: Branch) -> None:
        """Run turns until the branch is over, with training actions cut at the limit."""
        limit = self.limit(branch.group.key[0]) if branch.group.mode == "train" else None
        while not branch.over:
            await branch.generate(max_tokens=limit)
            if not branch.over:
                await branch.submit()


_EVERY = 125
_PASS_RATE = Schedule(  # from the third stage on, except in the first stage of code
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
            ("math", "code"),
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
