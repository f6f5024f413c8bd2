"""PRIME: process rewards for every token, from a reward model trained on outcomes only (arXiv:2502.01456).

`ImplicitProcess` computes the rewards of tokens: the log-ratio of a reward model to its reference. Each source of
reward has its own leave-one-out baseline before both are summed up:

    A_t = sum_{s >= t} [r_s - mean over the group's other draws of their mean r] + O - mean of the other draws' outcomes

The loss adds an entropy bonus of 0.001. Groups with a mean outcome below 0.2 or above 0.8 are replaced. The reward
model learns from the outcomes, by a cross-entropy of beta * the sum of its log-ratio against the score. It can be
trained before the rewards are computed: `Train(..., stage="before_credit")`. The public code divides the process
rewards by their largest return, `ImplicitProcess(scale="max_return")`, and whitens the advantages over tokens, with one
more advantage component:

    GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8)

Equations:
    Read: the paper's sections 3.1 to 3.3 and 4.1, and the public code.

    - 3, reward of a token: `ImplicitProcess`, of every trained token, including the last one.
    - A8, loss of the reward model: `OutcomeClassifier`, mean over draws.
    - 4, leave-one-out of the outcomes: `GroupRelative(center="leave_one_out")`, at the last token.
    - 5, advantage: `GroupRelative(center="leave_one_out")` of the process rewards, then of the outcomes, and
      `Discounted`, gamma 1.
    - 6, policy loss: `Policy`, clip range 0.2; not computed: the recipe's own case covers it.
    - 3.3, filter of prompts: `DynamicSampling(Band(at_least=0.2, at_most=0.8))`; not computed: the band has its own
      test.
    - C1, scale of the process rewards: `ImplicitProcess(scale="max_return")`, offered as an option, without the 1e-6 in
      the denominator.
    - C2, leave-one-out of the code: `LeaveOneOutProcess`, offered as an option.
    - C3, whitening: one more `GroupRelative`, offered as an option.

Differs:
    - Scale and whitening: the code has them; the paper and this recipe do not.
    - Group of one: the paper has none; here its advantage is 0.
    - Order: the paper's text updates the reward model before the rewards are computed; its algorithm 1, its script and
      this recipe update it after.
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
    """Compare each token's reward with its group, as the public code of PRIME does.

    r is the reward of a token, m the mean reward of a draw's tokens, and n the number of draws of the group with
    rewards:

        n / (n - 1) * r - (sum of m over all n draws) / (n - 1)

    The recipe computes equation 5 of the paper, r - (sum of m over the n - 1 other draws) / (n - 1), which is
    `GroupRelative(column="process_reward", level="token", voter="trajectory", center="leave_one_out", scale="none")`.
    Draws without a score are not counted and get 0; a draw alone in its group gets 0 too.

    Args:
        column: token column of the rewards.
        coefficient: factor of the result.

    Example:
        >>> from agentrl_core.recipes.prime import LeaveOneOutProcess
        >>> LeaveOneOutProcess().makes
        (token('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"),)
    needs: ClassVar[tuple[Column, ...]] = (token("score"), token("group_id"))
    column: str = column_name("process_reward", level="token")
    coefficient: float = 1.0

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on tokens."""
        rows = Rows(batch, "token")
        rewards, groups = rows.values(self.column), rows.keys("group_id")
        counted = rows.valid & np.isfinite(rewards)
        of_group = group.statistics(rewards, groups, voter_ids=rows.voters("trajectory"), valid=counted)
        count = of_group.count[groups].astype(np.float64)
        advantages = count / np.maximum(count - 1.0, 1.0) * (rewards - of_group.mean[groups])
        return rows.write(advantage=np.where(counted & (count > 1.0), self.coefficient * advantages, 0.0))


PRIME = Recipe(
    name="prime",
    source="arXiv:2502.01456",
    reward=(OutcomeScore(), ImplicitProcess()),
    admit=DynamicSampling(Band(std_above=None, at_least=0.2, at_most=0.8)),
    advantage=(
        GroupRelative(column="process_reward", level="token", voter="trajectory", center="leave_one_out", scale="none"),
        GroupRelative(level="token", rows="last", center="leave_one_out", scale="none", add=True),
        Discounted(column="advantage", level="token"),
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
    minibatches=4,
)
