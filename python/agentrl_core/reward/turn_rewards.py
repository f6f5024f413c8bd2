"""Place the rewards of turns on tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, token
from agentrl_core.component.rows import last_of_chain

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class TurnEndReward(BatchComponent):
    """Place the reward of a turn on its last trainable token, for estimators on tokens.

    turn_reward = x at the last trainable token of a step, 0 at other tokens and if x is unknown. Use it with
    `advantage.Gae(column="turn_reward", outcome="")`. Sources: SPA-RL arXiv:2505.20732, A Practitioner's Guide to
    Multi-turn Agentic Reinforcement Learning arXiv:2510.01132.

    Args:
        column: step column x.

    Example:
        >>> from agentrl_core.reward import TurnEndReward
        >>> TurnEndReward().needs, TurnEndReward().makes
        ((step('step_score'),), (token('turn_reward'),))
    """

    phase: ClassVar[str] = "reward"
    makes: ClassVar[tuple[Column, ...]] = (token("turn_reward"),)

    column: str = column_name("step_score", level="step")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `turn_reward` on tokens."""
        rows = Rows(batch, "token")
        ends = last_of_chain(rows.within("step"), rows.flags("trainable"))
        return rows.write(turn_reward=np.where(ends, np.nan_to_num(rows.values(self.column), nan=0.0), 0.0))
