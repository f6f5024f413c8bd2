"""PRIME: process rewards of every token from a model that learned outcomes only (arXiv:2502.01456).

`ImplicitProcess` makes the rewards of tokens: the log-ratio of a reward model to its reference. Each source of reward
has a leave-one-out baseline of its own before both are summed up:

    A_t = sum_{s >= t} [5 * P_s + 5 * O_s],  O: the outcome, at the last token, minus that of the others of the group,
    P_s = n / (n - 1) * rho_s - (sum over the group of the mean rho of a draw) / (n - 1)

and the advantages are whitened over tokens; the loss pays 0.001 of entropy. Groups whose mean outcome is below 0.2 or
above 0.8 are replaced. The reward model learns from the outcomes, by a cross-entropy of beta * the sum of its log-ratio
against the score; public code may train it before the rewards are taken: `Train(..., stage="before_credit")`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, token
from agentrl_core.loss import OutcomeClassifier, Policy, Train
from agentrl_core.reward import ImplicitProcess, OutcomeScore
from agentrl_core.select import Band, DynamicSampling

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class LeaveOneOutProcess(BatchComponent):
    """The rewards of tokens minus what the group's draws are paid a token, as if a draw did not vote for itself.

        advantage = coefficient * n / (n - 1) * (r - mean over the group's draws of their mean reward)

    with n draws that have rewards. Draws without a score neither vote nor get a value, and a draw alone in its group
    has 0.

    Args:
        column: rewards of tokens.
        coefficient: multiplies the result.

    Example:
        >>> from agentrl_core.recipes.prime import LeaveOneOutProcess
        >>> LeaveOneOutProcess().makes
        (token('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"),)
    needs: ClassVar[tuple[Column, ...]] = (token("score"), token("group_id"))
    column: str = column_name("process_reward", level="token")
    coefficient: float = 5.0

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on tokens."""
        rows = Rows(batch, "token")
        rewards, groups = rows.values(self.column), rows.keys("group_id")
        counted = rows.valid & np.isfinite(rewards)
        of_group = group.statistics(rewards, groups, voter_ids=rows.voters("trajectory"), valid=counted)
        count = of_group.count[groups].astype(np.float64)
        others = np.maximum(count - 1.0, 1.0)
        compared = np.where(count > 1.0, count / others * (rewards - of_group.mean[groups]), 0.0)
        return rows.write(advantage=np.where(counted, self.coefficient * compared, 0.0))


PRIME = Recipe(
    name="prime",
    source="arXiv:2502.01456",
    reward=(OutcomeScore(), ImplicitProcess(scale="max_return")),
    admit=DynamicSampling(Band(std_above=None, at_least=0.2, at_most=0.8)),
    advantage=(
        LeaveOneOutProcess(),
        GroupRelative(level="token", rows="last", center="leave_one_out", scale="none", coefficient=5.0, add=True),
        Discounted(column="advantage", level="token"),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=(
        Train(
            OutcomeClassifier(
                "sequence_mean",
                beta=0.05,
                baseline="none",
                balanced=False,
                label="score",
                other="reward_reference_logprob",
            ),
            model="reward_model",
        ),
        Policy(entropy=0.001),
    ),
)
