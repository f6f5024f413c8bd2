"""Process rewards of tokens that a reward model implies by its log-probs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, option, step, token
from agentrl_core.operators import returns
from agentrl_core.operators.process_rewards import implicit_rewards

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ImplicitProcess(BatchComponent):
    """Reward tokens or steps by a log-ratio of two models: process_reward = beta * (log p_model - log p_reference).

    Two node_token columns hold the log-probs (`annotate(batch, name, model)`); the reference is frozen (PRIME) or a
    snapshot of the policy (iStar). With a teacher as the model and the policy that sampled as the reference, the reward
    is the negative estimate of the reverse KL (on-policy distillation: `beta=1.0, model="teacher_logprob",
    reference="behaviour_logprob"`). Tokens that are not trained have no reward (NaN). Sources: PRIME, arXiv:2502.01456;
    iStar, arXiv:2509.19199 (`level="step"`).

    Args:
        beta: factor.
        level: `token`: each trained token; `step`: the sum of a step; `draw`: the sum of a draw, at its last trained
            token.
        scale: `max_return` divides by the largest absolute sum of rewards to come, over the batch.
        model: the column with log p_model.
        reference: the column with log p_reference.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import ImplicitProcess
        >>> ImplicitProcess(level="step").makes
        (step('process_reward'),)
    """

    phase: ClassVar[str] = "reward"

    beta: float = option(0.05, above=0)
    level: Literal["token", "step", "draw"] = "token"
    scale: Literal["none", "max_return"] = "none"
    model: str = column_name("reward_model_logprob", level="token", model="reward_model")
    reference: str = column_name("reward_reference_logprob", level="token", model="reward_reference")

    def own_makes(self) -> Iterable[Column]:
        """Yield the column that is made: `process_reward` of tokens or steps."""
        yield step("process_reward") if self.level == "step" else token("process_reward")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `process_reward`."""
        tokens = Rows(batch, "token")
        trained = tokens.flags("trainable")
        model, reference = (np.where(trained, tokens.values(name), 0.0) for name in (self.model, self.reference))
        rows, offsets = tokens, None
        if self.level != "token":
            offsets = batch.offsets("token")
            if self.level == "step":
                rows = Rows(batch, "step")
            else:
                offsets = offsets[batch.offsets("step")]
        rewards = implicit_rewards(model, reference, beta=self.beta, offsets=offsets)
        if self.level == "draw":
            rewards = np.where(tokens.last, rewards[tokens.draws], np.nan)
        elif self.level == "token":
            rewards = np.where(trained, rewards, np.nan)
        if self.scale == "max_return":
            to_come = returns.discounted(np.nan_to_num(rewards, nan=0.0), rows.draws, gamma=1.0)
            largest = float(np.abs(to_come).max(initial=0.0))
            rewards = rewards / largest if largest > 0.0 else rewards
        return rows.write(process_reward=rewards)
