"""A practitioner's guide to agents of many turns: each turn is paid at its end, and a critic judges every token.

    won: r_k over the number of turns that were paid, so that ones add up to 1;   lost: r_k over 10
    A_t: GAE of tokens with r_k at the last token of turn k, no discount, less 0.01 (log p - log p_ref) at each token
    L = PPO's, clipped at 0.2, on (A - mean) / std over all tokens;   L_critic = mean over tokens of 1/2 (V - R)^2

Dense rewards speed training up, and how stable they leave it depends on the estimator. The largest number of paid
turns is the environment's (10 is a proposal); lambda is not stated, and 1 as in verl. Without a critic (RLOO):
`advantage.Discounted()` on rewards of steps, then `advantage.GroupRelative(column="advantage", level="step",
center="leave_one_out", scale="none")`.

Source: arXiv:2510.01132. Needs: rewards of steps, the fact success; the critic as token column `value`; the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, option, step, sum_rows
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.reward import OutcomeScore, TurnEndReward

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SharedTurns(BatchComponent):
    """Makes the rewards of a won episode's turns add up to about 1, and those of a lost one to less.

    step_score = reward / n, n the number of the draw's turns whose reward is not 0 (at least 1) if it succeeded, and
    `count` where not. A turn without a reward has 0.

    Args:
        count: the largest number of turns that are paid, at least 1.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.practitioners_guide import SharedTurns
        >>> SharedTurns().makes
        (step('step_score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (step("reward"), step("success"))
    makes: ClassVar[tuple[Column, ...]] = (step("step_score"),)

    count: int = option(10, at_least=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `step_score` on steps."""
        rows = Rows(batch, "step")
        rewards = np.nan_to_num(rows.values("reward"), nan=0.0)
        paid = sum_rows((rewards != 0.0).astype(np.float64), rows.draws, batch.num_draws)[rows.draws]
        scores = rewards / np.where(rows.flags("success"), np.maximum(paid, 1.0), self.count)
        return rows.write(step_score=np.where(rows.is_known("success"), scores, np.nan))


PRACTITIONERS_GUIDE = Recipe(
    name="practitioners_guide",
    source="arXiv:2510.01132",
    reward=(OutcomeScore(), SharedTurns(), TurnEndReward()),
    advantage=(
        Gae(column="turn_reward", outcome="", kl_coefficient=0.01),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=(Train(Value("token_mean"), model="critic"), Policy()),
)
