"""Generalised advantage estimates of tokens, of steps, or along the agents of an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, last_of, needed
from agentrl_core.operators import returns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Gae(BatchComponent):
    """advantage = A_t = delta_t + gamma * lam * A_{t+1}, delta_t = r_t + gamma * V_{t+1} - V_t; return = A_t + V_t.

    Tokens that are not trained (tool results inside an action) are passed over: what comes after them flows to what
    came before. Rows of draws without a score get 0. Sources: GAE arXiv:1506.02438, PPO arXiv:1707.06347 (tokens);
    VL-DAC arXiv:2508.04280 (`level="step", gamma=0.99, lam=0.95, at_truncation="drop"`); MARFT arXiv:2504.16129
    (`level="agent"`: steps of all agents of an episode are one chain).

    Args:
        level: of the rows: `token`, `step`, or `agent`: steps, ordered by (step, agent) within their episode.
        gamma: discount from row to row, 0 to 1.
        lam: lambda, 0 to 1.
        reward: `score_last`: the last row of a draw (of an episode, at level `agent`) is paid the score; `column`: each
            row what `column` says.
        column: of `column`: the reward of each row, or what phase reward made of it (`step_score`).
        at_truncation: what follows the last row of a trajectory that was cut off: nothing, as after one that ended
            (`terminate`, verl), the column `next_value` (`bootstrap`), its own value again (`repeat`, T-PPO), or the
            row gets no advantage (`drop`, VL-DAC).
        kl_in_reward: beta of `beta * (log pi - log pi_ref)`, taken off the reward of each token; `level="token"` only.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import Gae
        >>> Gae(level="step", reward="column").needs
        (('step', 'value'), ('step', 'reward'))
    """

    phase: ClassVar[str] = "advantage"

    level: Literal["token", "step", "agent"] = "token"
    gamma: float = 1.0
    lam: float = 1.0
    reward: Literal["score_last", "column"] = "score_last"
    column: str = "reward"
    at_truncation: Literal["terminate", "bootstrap", "repeat", "drop"] = "terminate"
    kl_in_reward: float = 0.0

    def check_options(self) -> None:
        """Ranges as documented."""
        for option in ("gamma", "lam"):
            self.require(0.0 <= getattr(self, option) <= 1.0, option, "give a number from 0 to 1")
        self.require(
            self.kl_in_reward == 0.0 or self.level == "token", "kl_in_reward", 'choose level="token", or give 0'
        )

    @property
    def needs(self) -> tuple[Column, ...]:
        """Values, rewards, and what says how trajectories go on."""
        names = ["value", "score" if self.reward == "score_last" else self.column]
        if self.level == "agent":
            names += ["episode_id", "step", "agent"]
        if self.at_truncation != "terminate":
            names.append("truncated")
        if self.at_truncation == "bootstrap":
            names.append("next_value")
        if self.kl_in_reward != 0.0:
            names += ["behaviour_logprob", "reference_logprob"]
        return needed(self._rows_level, *names)

    @property
    def makes(self) -> tuple[Column, ...]:
        """Advantage and return of each row."""
        return needed(self._rows_level, "advantage", "return")

    @property
    def _rows_level(self) -> Literal["token", "step"]:
        return "token" if self.level == "token" else "step"

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `return`."""
        rows = Rows(batch, self._rows_level)
        order, chains = np.arange(len(rows)), rows.draws
        if self.level == "agent":
            chains = rows.keys("episode_id")
            order = np.lexsort((rows.values("agent"), rows.values("step"), chains))
        chains, valid = chains[order], rows.valid[order]
        values = np.where(valid, rows.values("value")[order], 0.0)
        bootstrap, policy = None, valid
        if self.at_truncation != "terminate":
            cut = rows.flags("truncated")[order]
            after = rows.values("next_value")[order] if self.at_truncation == "bootstrap" else values
            bootstrap = np.where(cut & valid, after, 0.0)
            if self.at_truncation == "drop":
                policy = valid & ~(cut & last_of(chains, valid))
        advantage, returned = np.zeros(len(rows)), np.zeros(len(rows))
        advantage[order], returned[order] = returns.gae(
            self._rewards(rows, order, chains),
            values,
            chains,
            gamma=self.gamma,
            lam=self.lam,
            mask=policy,
            bootstrap=bootstrap,
        )
        made = {"advantage": advantage, "return": returned}
        return rows.write(**{name: np.where(rows.valid, values, 0.0) for name, values in made.items()})

    def _rewards(self, rows: Rows, order: NDArray[np.int64], chains: NDArray[np.uint32]) -> NDArray[np.float64]:
        if self.reward == "column":
            rewards = rows.values(self.column)[order]
        else:
            last = last_of(chains, rows.valid[order])
            rewards = np.where(last, rows.values("score")[order], 0.0)
        if self.kl_in_reward != 0.0:
            divergence = rows.values("behaviour_logprob") - rows.values("reference_logprob")
            rewards = np.nan_to_num(rewards, nan=0.0) - self.kl_in_reward * divergence[order]
        return np.where(rows.valid[order], np.nan_to_num(rewards, nan=0.0), 0.0)
