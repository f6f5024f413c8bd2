"""A practitioner's guide to multi-turn agents: reward each turn at its end, and value every token with a critic.

    won: r_k divided by the number of turns with r_k > 0, so that rewards of 1 add up to 1;   lost: r_k divided by 10
    A_t: GAE of tokens with r_k at the last token of turn k, no discount, minus 0.01 (log p - log p_ref) at each token
    L = PPO's loss, clip range 0.2 and dual clip 3, on (A - mean) / std over all tokens
    L_critic = mean over tokens of 1/2 (V - R)^2

Dense rewards speed up training; how stable it is then depends on the estimator. The environment defines the largest
number of rewarded turns (10 is a proposal). Lambda is not stated; here it is 1, as in verl. Without a critic (RLOO),
use `advantage.GroupRelative(center="leave_one_out", scale="none", singleton="raw")` on the sum of the turns' rewards.

Equations:
    Read: the abstract, the code and its recipes.

    - C1, dense rewards: `SharedTurns`, then `TurnEndReward`; the final score is not added.
    - C2, sparse reward: with `reward=OutcomeScore()` and `Gae(kl_coefficient=0.01)`.
    - C3, KL in the reward: `Gae(kl_coefficient=0.01)`.
    - C4, GAE over turns: `Gae(column="turn_reward")`, then whitening; tokens of the environment are skipped.
    - C5, RLOO: the `GroupRelative` above.
    - C6, policy loss: `Policy(clip=Clip(dual=3.0))`, one mean over all tokens.

Differs:
    - The most rewards that a task can give: a number for each task in the code; one number for all tasks here,
      `SharedTurns(count=10)`.
    - KL: 0.01 in the rewards, in the code and here; the loss has none. With RLOO the code has 0.001.

Source: arXiv:2510.01132. Needs: rewards of steps; the fact `success`; the critic's token column `value`; the model
`reference`.
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
    """Scale the rewards of an episode's turns, so that they add up to about 1 if it is won, and to less if it is lost.

    step_score = reward / n. If the draw succeeded, n is the number of its turns with a reward above 0 (at least 1);
    otherwise n is `count`. A turn without a reward has 0. `score` is the sum over the draw. It is unknown if the
    success is unknown.

    Args:
        count: largest number of turns that can be rewarded, at least 1.

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
        rewarded_steps = sum_rows((rewards > 0.0).astype(np.float64), rows.draws, batch.num_draws)[rows.draws]
        scores = rewards / np.where(rows.flags("success"), np.maximum(rewarded_steps, 1.0), self.count)
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
