"""XRPO: spend rollouts on uncertain tasks, show examples to failing ones, reward novel successes (arXiv:2510.06672).

A success that was unlikely under the policy gets a larger advantage. With s the mean log-prob of a draw's trained
tokens and mean(s) the mean of its group, the advantage is

    A + min(max(2.5 (1 - exp(s - mean(s))), 0), 0.5 A)    if A > 0,

and A otherwise, with A GRPO's advantage. Rollouts are allocated over all tasks of a selection: 4 each, then in rounds
of 4, one more for each of the tasks with the largest priority

    h(n) - h(n + 1) + 0.1 sqrt(log(1 + T) / n),    h(n) = t(0.975, n - 1) s / sqrt(n)

with n scores of standard deviation s (n - 1) and T rollouts so far, until the mean is 8 rollouts a task. A task
without a solved rollout so far gets a prompt with two solved tasks before it, and is trained with this prompt. Base,
rounds, budget, 0.1 and 0.975 are proposals; no public code of the authors is known.

Equations:
    Read: the abstract, reviews, and notes of others; the paper's text was not read.

    - N1 and N2, half-width and expected reduction: `PriorityRounds.priority`.
    - N3 and N4, exploration and priority: `PriorityRounds`; statistics are computed anew in each round.
    - N5, seeding: `ExampleHint(count=2)`: any solved tasks of earlier iterations, not the nearest ones.
    - N6, novelty: `Novelty`, by the log-probs at sampling, over all scored draws of a group.
    - N7, sharpened advantage: `Novelty(coefficient=2.5, at_most=0.5)`.
    - N8, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.

Differs:
    - Examples: nearest by embedding in the paper; here the library of solved tasks has no embeddings of their prompts.
    - Rounds: three planning phases by a review; the number that the budget needs here, each with one rollout for each
      of 4 tasks.
    - Seeded rollouts: trained with their examples in the prompt here; not stated in the notes.
    - Clip range: not stated; 0.2 here.

Source: arXiv:2510.06672.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, mean_of_tokens, option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy
from agentrl_core.rollout import Cohort, ExampleHint, Group, RolloutSpec, Rounds

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Novelty(BatchComponent):
    """Increase positive advantages of draws that were unlikely compared with their group.

    The formula is in the module docstring.

    Args:
        logprob: token column of log-probs.
        coefficient: lambda, the factor of the addition.
        at_most: kappa: the largest addition, in units of the advantage.

    Raises:
        RecipeError: an option is out of range, or the column has no known value.

    Example:
        >>> from agentrl_core.recipes.xrpo import Novelty
        >>> Novelty().makes
        (draw('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    logprob: str = column_name("behaviour_logprob", level="token")
    coefficient: float = option(2.5, at_least=0.0)
    at_most: float = option(0.5, at_least=0.0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the bonus added to the column `advantage` of draws."""
        rows = Rows(batch, "draw")
        advantages = rows.values("advantage")
        means, known = mean_of_tokens(batch, self.logprob, "draw")
        above = group.normalise(means, rows.keys("group_id"), scale="none", valid=known)
        rarities = np.maximum(-self.coefficient * np.expm1(above), 0.0)
        bonuses = np.where(known & (advantages > 0.0), np.minimum(rarities, self.at_most * advantages), 0.0)
        return rows.write(advantage=advantages + bonuses)


@lru_cache
def student(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t for integer degrees of freedom, at a probability of at least 1/2."""

    def below(value: float) -> float:
        angle = math.atan(value / math.sqrt(degrees))
        odd, total, term = degrees % 2, 0.0, math.cos(angle) if degrees % 2 else 1.0
        for power in range(1 + odd, degrees, 2):
            total += term
            term *= power / (power + 1) * math.cos(angle) ** 2
        if odd:
            return 0.5 + (angle + math.sin(angle) * total) / math.pi
        return 0.5 + math.sin(angle) * total / 2.0

    low, high = 0.0, 1.0
    while below(high) < probability:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return high


@dataclass(frozen=True)
class PriorityRounds(Rounds):
    """Allocate rollouts to the tasks where they narrow the confidence interval of the mean score most.

    The formula is in the module docstring. The draw column `seeded` is 1 for rollouts whose prompt has examples.

    Args:
        members: first rollouts of every task.
        budget: final mean number of rollouts of a task.
        per_round: number of tasks that get one more rollout in a round.
        coefficient: lambda, the factor of the exploration term.
        confidence: alpha: intervals hold with probability 1 - alpha.
        examples: examples for tasks without a solved rollout.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.recipes.xrpo import PriorityRounds
        >>> mixed, solved = np.array([0.0, 1.0, 0.0, 1.0]), np.ones(4)
        >>> PriorityRounds().priority(mixed, 8) > PriorityRounds().priority(solved, 8)
        True
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"seeded": ExtraColumn("trajectory")}

    members: RolloutSpec = RolloutSpec(4)  # noqa: RUF009 - frozen
    budget: int = option(8, at_least=1)
    per_round: int = option(4, at_least=1)
    coefficient: float = option(0.1, at_least=0)
    confidence: float = option(0.05, above=0, below=1)
    examples: ExampleHint = ExampleHint(count=2)  # noqa: RUF009 - frozen

    def priority(self, scores: NDArray[np.float64], total: int) -> float:
        """Return the priority of one more rollout of a task; infinite if fewer than two scores are known."""
        known = scores[np.isfinite(scores)]
        count = len(known)
        if count < 2:
            return math.inf
        spread = float(known.std(ddof=1))

        def half_width(count: int) -> float:
            return student(1.0 - self.confidence / 2.0, count - 1) * spread / math.sqrt(count)

        exploration = self.coefficient * math.sqrt(math.log1p(total) / count)
        return half_width(count) - half_width(count + 1) + exploration

    async def cohort(self, groups: Cohort) -> None:
        """Run the first members of every task, then rounds over all tasks until the budget is spent."""
        await groups.run_each(self._getting(self.members))
        total, spent = self.budget * len(groups), self.members.total(0) * len(groups)
        while spent < total:
            scores = await groups.score(self.column)
            priorities = np.array([self.priority(known, spent) for known in scores])
            order = np.argsort(-priorities, kind="stable")[: min(self.per_round, total - spent)]
            solved = {row: bool((scores[row] > self.solved_above).any()) for row in order.tolist()}
            for shown in (False, True):
                chosen = [groups[row] for row in order.tolist() if solved[row] is not shown]
                await groups.run_each(self._getting(self._one(shown=shown)), chosen)
            spent += len(order)

    def _one(self, *, shown: bool) -> RolloutSpec:
        return RolloutSpec(1, hint=self.examples, fact="seeded") if shown else RolloutSpec(1)

    def _getting(self, members: RolloutSpec) -> Callable[[Group], Awaitable[Any]]:
        async def get(group: Group) -> None:
            await members.run(group, self)

        return get


XRPO = Recipe(
    name="xrpo",
    source="arXiv:2510.06672",
    rollout=PriorityRounds(),
    advantage=(GroupRelative(), Novelty()),
    loss=Policy(),
)
