"""ReLIC: update several times within one very long rollout, which continues after each update (arXiv:2410.02751).

    collect a window of every rollout, update both models on it, and continue the rollout with all its tokens
    A_t = sum_k (0.99 * 0.95)^k delta_{t+k},   delta_t = r_t + 0.99 V_{t+1} - V_t,   V after a window: its last V
    L_policy = - mean over the tokens of this window of [min(r A, clip(r, 0.8, 1.2) A) + 0.01 entropy]
    L_critic = mean over the tokens of this window of 1/2 (V - A_old - V_old)^2

So an update in the middle of a rollout improves the rest of it, for which the new weights recompute the context. A
rollout that has ended is used for one more update as a whole: all of its tokens count, each with a ratio to the weights
that sampled it. Rewards belong to steps, since a whole rollout has no reward before it ends. Collect with
`Collector(..., batch_policy=BatchPolicy(max_new_tokens=l))` and groups of one. Sink-KV, a change of the model's
attention, is not part of the recipe. A trajectory is one episode: the paper's rollouts hold many, and no return crosses
their borders.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, when: `ThisWindow`; the collector sets the length of a window.
    - C2, advantage: `Gae` over the whole rollout so far; each episode is its own draw.
    - C3, loss: `Policy(entropy=0.01)` and `Value` of the model critic, on the tokens that `ThisWindow` keeps.
    - C4, after a partial update: `Gae` reads `value`, which is annotated anew for all tokens of each batch; the shuffle
      of ended episodes is left to the user, since a trajectory holds one episode.
    - C5, Sink-KV: left out: a change of the model's attention.
    - C6, after the full update: not computed: a new rollout starts with its prompt alone, as every trajectory does.

Differs:
    - Time: a step of the environment in the paper, a token here, since a window may end within an action. Discounts and
      critic work on tokens, so that long actions are discounted more.
    - Value behind a window: the value of the next state in the code; the last value of the window again here, since no
      forward pass computes one after the last token; `at_truncation="bootstrap"` reads a column `next_value`.
    - Weight of the value loss: 0.5 relative to the policy's in the code; the critic has its own optimizer here.

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
    """In all losses, keep all tokens of ended draws, and of others only the tokens sampled by the newest weights.

    A draw has ended if its tokens are not `truncated`. Tokens that are not kept are context.
    `recipes.t_ppo.LatestVersionOnly` makes no such exception for ended draws, and acts in the policy's loss only.

    Example:
        >>> from agentrl_core.recipes.relic import ThisWindow
        >>> ThisWindow().needs, ThisWindow().makes
        ((token('policy_version'), token('truncated')), (token('keep'),))
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("policy_version"), token("truncated"))
    makes: ClassVar[tuple[Column, ...]] = (token("keep"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `keep` on tokens."""
        rows = Rows(batch, "token")
        versions = rows.values("policy_version")
        newest = np.full(batch.num_draws, -np.inf)
        np.maximum.at(newest, rows.draws, versions)
        return rows.write(keep=(versions == newest[rows.draws]) | ~rows.flags("truncated"))


RELIC = Recipe(
    name="relic",
    source="arXiv:2410.02751",
    reward=(OutcomeScore(), TurnEndReward(column="reward")),
    advantage=(CutOff(), Gae(gamma=0.99, lam=0.95, column="turn_reward", outcome="", at_truncation="repeat")),
    weight=ThisWindow(),
    loss=(Train(Value("token_mean"), model="critic", keep=True), Policy("token_mean", entropy=0.01)),
    epochs=4,
    minibatches=2,
)
