"""ReLIC: several updates inside one very long rollout, which goes on after each of them (arXiv:2410.02751).

    a window of every rollout is collected, both models are updated on it, and the rollout goes on with all its tokens
    A_t = sum_k (0.99 * 0.95)^k delta_{t+k},   delta_t = r_t + 0.99 V_{t+1} - V_t,   V after a window: its last one
    L_policy = - mean over the tokens of this window of min(r A, clip(r, 0.8, 1.2) A)
    L_critic = mean over the tokens of this window of 1/2 (V - A_old - V_old)^2

So what is learned in the middle of a rollout serves the rest of it, whose context the new weights read anew. Rewards
are those of steps, since there is none of the whole before it ends. Collect with `Collector(...,
batch_policy=BatchPolicy(max_new_tokens=l))` and groups of one. Sink-KV, a change of the model's attention, is not part
of the recipe. Of the paper only the abstract could be read: gamma, lambda and the clip are those of PPO, and the
repeated value is that of T-PPO.

Needs: rewards of steps; the critic as token column `value`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import BatchComponent, Column, Rows, token
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.recipes.t_ppo import CutOff
from agentrl_core.reward import OutcomeScore, TurnEndReward

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class ThisWindow(BatchComponent):
    """Keeps in all losses only the tokens that the newest weights of their draw sampled; the others are context.

    `recipes.t_ppo.LatestVersionOnly` does so in the policy's loss alone.

    Example:
        >>> from agentrl_core.recipes.relic import ThisWindow
        >>> ThisWindow().needs, ThisWindow().makes
        ((token('policy_version'),), (token('keep'),))
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("policy_version"),)
    makes: ClassVar[tuple[Column, ...]] = (token("keep"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `keep` on tokens."""
        rows = Rows(batch, "token")
        versions = rows.values("policy_version")
        newest = np.full(batch.num_draws, -np.inf)
        np.maximum.at(newest, rows.draws, versions)
        return rows.write(keep=versions == newest[rows.draws])


RELIC = Recipe(
    name="relic",
    source="arXiv:2410.02751",
    reward=(OutcomeScore(), TurnEndReward(column="reward")),
    advantage=(CutOff(), Gae(gamma=0.99, lam=0.95, column="turn_reward", outcome="", at_truncation="repeat")),
    weight=ThisWindow(),
    loss=(Train(Value("token_mean"), model="critic", keep=True), Policy("token_mean")),
)
