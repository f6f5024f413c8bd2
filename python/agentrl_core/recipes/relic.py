"""ReLIC: several updates inside one very long rollout, which goes on after each of them (arXiv:2410.02751).

    a window of every rollout is collected, both models are updated on it, and the rollout goes on with all its tokens
    A_t = sum_k (0.99 * 0.95)^k delta_{t+k},   delta_t = r_t + 0.99 V_{t+1} - V_t,   V after a window: its last one
    L_policy = - mean over the tokens of this window of [min(r A, clip(r, 0.8, 1.2) A) + 0.01 entropy]
    L_critic = mean over the tokens of this window of 1/2 (V - A_old - V_old)^2

So what is learned in the middle of a rollout serves the rest of it, whose context the new weights read anew. A rollout
that has ended is updated on once more as a whole: all of its tokens count, each against the weights that sampled it.
Rewards are those of steps, since there is none of the whole before it ends. Collect with `Collector(...,
batch_policy=BatchPolicy(max_new_tokens=l))` and groups of one. Sink-KV, a change of the model's attention, is not part
of the recipe, and a trajectory is one episode: the paper's rollouts hold many, and no return crosses their borders.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, when: `ThisWindow`; the length of a window is the collector's.
    - C2, advantage: `Gae` over the whole rollout so far; episodes are draws of their own.
    - C3, loss: `Policy(entropy=0.01)` and `Value` of the model critic, on what `ThisWindow` keeps.
    - C4, after a partial update: `Gae` reads `value`, which is annotated anew for all tokens of each batch; the
      shuffle of ended episodes is left to the user, as a trajectory holds one.
    - C5, Sink-KV: left out: a change of the model's attention.
    - C6, after the full update: not computed: a new rollout begins with its prompt alone, as every trajectory does.

Differs:
    - Time: a step of the environment in the paper, a token here, since a window may end within an action. Discounts
      and critic are of tokens, so that long actions are discounted more.
    - Value behind a window: that of the next state in the code, the last one again here, since no forward pass reads
      one behind the last token; `at_truncation="bootstrap"` takes a column `next_value`.
    - Weight of the value loss: 0.5 beside the policy's in the code; the critic has its own optimizer here.

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

    Of a draw that has ended, whose tokens are not `truncated`, all are kept. `recipes.t_ppo.LatestVersionOnly` does so
    in the policy's loss alone, and for all draws.

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
