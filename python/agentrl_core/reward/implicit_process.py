"""Rewards that a reward model implies by its log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import returns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ImplicitProcess(BatchComponent):
    """process_reward = beta * (log p_model - log p_reference), of each trained token, or summed over a step or a draw.

    Two node_token columns hold the log-probs: `reward_model_logprob` and `reward_reference_logprob`
    (`arl.annotate(batch, name, model)`); the reference is frozen (PRIME) or a snapshot of the policy (iStar). Tokens
    that are not trained have no reward (NaN). Sources: PRIME, arXiv:2502.01456; iStar, arXiv:2509.19199
    (`granularity="step"`).

    Args:
        beta: above 0.
        granularity: `token`: each trained token but the last of a draw, where the outcome is paid; `step`: the sum of a
            step; `whole`: the sum of a draw, at its last trained token.
        scale: `max_return` divides by the largest absolute sum of rewards to come, over the batch.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import ImplicitProcess
        >>> ImplicitProcess(granularity="step").makes
        (('step', 'process_reward'),)
    """

    phase: ClassVar[str] = "reward"

    beta: float = 0.05
    granularity: Literal["token", "step", "whole"] = "token"
    scale: Literal["none", "max_return"] = "none"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.beta > 0.0, "beta", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The log-probs of the two models."""
        return needed("token", "reward_model_logprob", "reward_reference_logprob")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The reward of each token or step."""
        return needed("step" if self.granularity == "step" else "token", "process_reward")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `process_reward`."""
        tokens = Rows(batch, "token")
        trained = tokens.flags("trainable")
        model, reference = (
            np.where(trained, tokens.values(name), 0.0) for name in ("reward_model_logprob", "reward_reference_logprob")
        )
        rows, offsets = tokens, None
        if self.granularity != "token":
            rows = Rows(batch, "step" if self.granularity == "step" else "draw")
            offsets = batch.offsets("token")
            offsets = offsets if self.granularity == "step" else offsets[batch.offsets("step")]
        made = _core.reward_implicit(model, reference, offsets, self.beta)
        if self.granularity == "whole":
            made, rows = np.where(tokens.last, made[tokens.draws], np.nan), tokens
        elif self.granularity == "token":
            made = np.where(trained & ~tokens.last, made, np.nan)
        if self.scale == "max_return":
            to_come = returns.discounted(np.nan_to_num(made, nan=0.0), rows.draws, gamma=1.0)
            most = float(np.abs(to_come).max(initial=0.0))
            made = made / most if most > 0.0 else made
        return rows.write(process_reward=made)
