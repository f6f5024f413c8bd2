"""Advantages of steps between what was reached and what a critic expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import returns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class DoublyRobust(BatchComponent):
    """advantage = lam^h * R + (1 - lam^h) * (V_{t+1} + r_t - V_t) of each step that this makes good enough to imitate.

    R is the score of the draw, h how many steps follow the step, V the step column `value` (after the last step: 0), r
    the reward of the step (0 where it has none). Steps whose advantage is not above 1 / horizon are left out of the
    loss (`keep` 0). Draws without a score get 0 and are left out. Source: DigiRL, arXiv:2406.11896, whose draws are
    chosen by `weight.SelectDraws(column="task_advantage", rule="quantile", fraction=0.1)`, with the score less the
    task's value in that column.

    Args:
        lam: 0 to 1.
        rule: `paper`, or `code`: x = V_{t+1} - V_t - cost + r_t + G_t, with the discounted return G_t; steps with x
            above 0 are kept.
        horizon: steps that a task may take, at least 1.
        cost: for `code`: of a step.
        gamma: for `code`: discount of G_t, 0 to 1.
        indicator: kept steps have advantage 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import DoublyRobust
        >>> DoublyRobust().makes
        (('step', 'advantage'), ('step', 'keep'))
    """

    phase: ClassVar[str] = "advantage"

    lam: float = 0.5
    rule: Literal["paper", "code"] = "paper"
    horizon: int = 10
    cost: float = 0.05
    gamma: float = 0.5
    indicator: bool = True

    def check_options(self) -> None:
        """Ranges as documented."""
        for option in ("lam", "gamma"):
            self.require(0.0 <= getattr(self, option) <= 1.0, option, "give a number from 0 to 1")
        self.require(self.horizon >= 1, "horizon", "give a number of at least 1")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Scores, rewards and values."""
        return needed("step", "score", "reward", "value")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each step, and which steps are trained."""
        return needed("step", "advantage", "keep")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `keep` on steps."""
        rows = Rows(batch, "step")
        valid = rows.valid
        value = np.where(valid, rows.values("value"), 0.0)
        reward = np.where(valid, np.nan_to_num(rows.values("reward"), nan=0.0), 0.0)
        ahead = np.where(rows.last, 0.0, np.append(value[1:], 0.0)[: len(rows)])
        gain = ahead + reward - value
        if self.rule == "paper":
            left = returns.discounted(np.ones(len(rows)), rows.draws, gamma=1.0) - 1.0
            share = self.lam**left
            made = share * np.where(valid, rows.values("score"), 0.0) + (1.0 - share) * gain
            keep = valid & (made > 1.0 / self.horizon)
        else:
            made = gain - self.cost + returns.discounted(reward, rows.draws, gamma=self.gamma)
            keep = valid & (made > 0.0)
        made = np.where(keep, 1.0 if self.indicator else made, made)
        batch = rows.write(advantage=np.where(valid, made, 0.0))
        return batch.with_columns("step", keep=keep.astype(np.uint8))
