r"""RISE: learn to solve tasks and, in the same batch, to verify the policy's own solutions.

The environment rewards every solution of the batch: 1 if right, -0.5 if wrong, -1 if unparsable. V = 128 of the
solutions, spread evenly over the groups and chosen at random within each, become verification tasks. A verification
task shows the question and the solution, and requires a rating in `\\boxed{...}`. It gets G answers, rewarded 1 if the
rating is the solution's score, -0.5 if it is another number, and -1 without a rating. Solutions and ratings are one
batch for PPO with gamma = lambda = 1 and KL 0.01 in the reward. A batch of 1024 + 128 tasks makes 9 optimizer steps of
128 tasks, so that the clip range of 0.2 acts. Source: arXiv:2505.13445.

Equations:
    Read: the paper and the public code.

    - 2, policy loss: `Policy`, clip range 0.2, mean over tokens; not computed: it is in the recipe's test case.
    - 3, advantage: `Gae`, gamma = lambda = 1, then whitened over solutions and ratings together, as in the code.
    - 4, critic: `Value("token_mean", clip=0.5)`.
    - 5 and 6, rewards and verification tasks: `SelfVerification`; not computed: it is in the recipe's own test.
    - 7, one batch: `SelfVerification.cohort`.
    - C1, spread over the groups: `SelfVerification.quotas`.

Differs:
    - KL: in the objective in the paper's equation 2, in the reward here: the paper's appendix C switches the penalty in
      the loss off and keeps the coefficient of 0.01, as does the code.
    - Critic loss: half of the paper's, as in the code.
    - Entropy bonus: 0.001 by the defaults that the code had, not in the paper; none here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn, Task
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.rollout import Branch, Cohort, Group, Rollout, SideTask

_RATING = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass(frozen=True)
class SelfVerification(Rollout):
    """Sample solutions, and ratings of some of them, with one budget of ratings for all groups.

    The draw column `verifies` is 1 for ratings.

    Args:
        verifications: V, number of verification tasks over all groups.
        template: prompt template of a verification task, with `{question}` and `{answer}`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.rise import SelfVerification
        >>> SelfVerification(verifications=5).quotas(3)
        [2, 2, 1]
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"verifies": ExtraColumn("trajectory")}

    verifications: int = option(128, at_least=0)
    template: str = option("{question}\n\nA solution:\n{answer}\n\nRate it 1, -0.5 or -1 in \\boxed{{}}.", filled=True)

    def quotas(self, groups: int) -> list[int]:
        """Return the number of verification tasks for each group."""
        return [self.verifications // groups + (place < self.verifications % groups) for place in range(groups)]

    async def group(self, group: Group) -> None:
        """Sample the solutions of a group."""
        await group.run(group.start_many(group.size, facts={"verifies": 0}))

    async def cohort(self, groups: Cohort) -> None:
        """Solve all tasks, then rate some of the solutions."""
        await groups.run()
        scores = await groups.score()
        chosen: dict[str, list[tuple[Branch, float]]] = {}
        for group, quota, known in zip(groups, self.quotas(len(groups)), scores, strict=True):
            rows = np.flatnonzero(np.isfinite(known)).tolist()
            order = sorted(rows, key=lambda row, group=group: group.uniform("verified", row))  # type: ignore[misc]
            chosen[group.name] = [(group.branches[row], float(known[row])) for row in order[:quota]]
        await groups.run_each(lambda group: self.rate(group, chosen[group.name]))

    async def rate(self, group: Group, chosen: list[tuple[Branch, float]]) -> None:
        """Start a verification task for each chosen solution."""
        for branch, score in chosen:
            question = self.template.format(question=group.prompt, answer=branch.text)
            task = Task(f"{group.task.task_id}/{branch.name}", question, "verification", group.task.payload)
            await group.spawn(task, size=group.size, parent=branch, program=_Rating("verifies", score=score))


@dataclass(frozen=True)
class _Rating(SideTask):
    """Rate a solution in one action."""

    score: float = 0.0

    def reward(self, text: str) -> float:
        """Return 1 for the right rating, -0.5 for another one, -1 without a rating."""
        ratings = _RATING.findall(text)
        try:
            rating = float(ratings[-1]) if ratings else float("nan")
        except ValueError:
            rating = float("nan")
        if not np.isfinite(rating):
            return -1.0
        return 1.0 if rating == self.score else -0.5


RISE = Recipe(
    name="rise",
    source="arXiv:2505.13445",
    rollout=SelfVerification(),
    advantage=(
        Gae(kl_coefficient=0.01),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=(Train(Value("token_mean", clip=0.5), model="critic"), Policy()),
    minibatches=9,
)
