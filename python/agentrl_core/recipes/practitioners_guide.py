"""A practitioner's guide to agents of many turns: each turn is paid at its end, and a critic judges every token.

    won: r_k over the number of turns with r_k > 0, so that ones add up to 1;   lost: r_k over 10
    A_t: GAE of tokens with r_k at the last token of turn k, no discount, less 0.01 (log p - log p_ref) at each token
    L = PPO's, clipped at 0.2 and 3, on (A - mean) / std over all tokens;   L_critic = mean over tokens of 1/2 (V - R)^2

Dense rewards speed training up, and how stable they leave it depends on the estimator. The largest number of paid
turns is the environment's (10 is a proposal); lambda is not stated, and 1 as in verl. Without a critic (RLOO):
`advantage.GroupRelative(center="leave_one_out", scale="none", singleton="raw")` on the sum of the turns' rewards.

Equations:
    Read: the abstract, the code and its recipes.

    - C1, dense rewards: `SharedTurns`, then `TurnEndReward`; the final score is not added.
    - C2, sparse reward: with `reward=OutcomeScore()` and `Gae(kl_coefficient=0.01)`.
    - C3, KL in the reward: `Gae(kl_coefficient=0.01)`.
    - C4, GAE over turns: `Gae(column="turn_reward")`, then whitening; tokens of the environment are skipped.
    - C5, RLOO: the `GroupRelative` above.
    - C6, policy loss: `Policy(clip=Clip(dual=3.0))`, one token mean.

Differs:
    - The most rewards that a task can give: of each task in the code; one number here, `SharedTurns(count=10)`.
    - KL: 0.01 here too, in the rewards; the loss has none. With RLOO the code has 0.001.

Source: arXiv:2510.01132. Needs: rewards of steps, the fact success; the critic as token column `value`; the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, step, sum_rows
from agentrl_core.loss import Clip, Policy, Train, Value
from agentrl_core.reward import TurnEndReward

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SharedTurns(BatchComponent):
    """Makes the rewards of a won episode's turns add up to about 1, and those of a lost one to less.

    step_score = reward / n, n the number of the draw's turns whose reward is above 0 (at least 1) if it succeeded, and
    `count` if not. A turn without a reward has 0. `score` is the sum of a draw; it is unknown if the success is.

    Args:
        count: the largest number of turns that are paid, at least 1.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.practitioners_guide import SharedTurns
        >>> SharedTurns().makes
        (step('step_score'), draw('score'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (step("reward"), step("success"))
    makes: ClassVar[tuple[Column, ...]] = (step("step_score"), draw("score"))

    count: int = option(10, at_least=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `step_score` on steps and their sum as `score` on draws."""
        rows = Rows(batch, "step")
        rewards = np.nan_to_num(rows.values("reward"), nan=0.0)
        paid = sum_rows((rewards > 0.0).astype(np.float64), rows.draws, batch.num_draws)[rows.draws]
        scores = rewards / np.where(rows.flags("success"), np.maximum(paid, 1.0), self.count)
        scores = np.where(rows.is_known("success"), scores, np.nan)
        total = sum_rows(scores, rows.draws, batch.num_draws)
        return Rows(rows.write(step_score=scores), "draw").write(score=total)


PRACTITIONERS_GUIDE = Recipe(
    name="practitioners_guide",
    source="arXiv:2510.01132",
    reward=(SharedTurns(), TurnEndReward()),
    advantage=(
        Gae(column="turn_reward", outcome="", kl_coefficient=0.01),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=(Train(Value("token_mean"), model="critic"), Policy(clip=Clip(dual=3.0))),
)
