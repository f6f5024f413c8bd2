"""DigiRL: the best steps of the best rollouts are imitated, as two critics judge them (arXiv:2406.11896).

One critic (`value`) expects the outcome of a step, the other that of a task. Of the draws, the tenth is kept whose
score is furthest above the task's value: the draw column `task_advantage`, which
`BaselineRelative(column="task_value")` makes of a batch of its own. Public code chooses steps otherwise:
`DoublyRobust(kind="code")`. Both critics learn by cross-entropy whether the return is above 0 (of the steps that are
kept, since all losses leave out the others); the step's has twin heads, of which the smaller counts (`value` `[N, 2]`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, option, step
from agentrl_core.loss import Imitation, Train, Value
from agentrl_core.operators import returns
from agentrl_core.recipe import Recipe
from agentrl_core.weight import SelectDraws

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class DoublyRobust(BatchComponent):
    """Chooses the steps that are good enough to imitate, by their outcome and by what a critic expected.

        advantage = lam^h * R + (1 - lam^h) * (V_{t+1} + r_t - V_t)

    R is the score of the draw, h how many steps follow the step, V the step column `value` (after the last step: 0), r
    the reward of the step (0 where it has none). Steps whose advantage is not above 1 / horizon are left out of the
    loss (`keep` 0). `return` is what the critic learns: 1 where the discounted return G_t is above 0. Draws without a
    score get 0 and are left out.

    Args:
        lam: 0 to 1.
        kind: `paper`, or `code`: x = V_{t+1} - V_t - cost + r_t + G_t, with the discounted return G_t; steps with x
            above 0 are kept.
        horizon: steps that a task may take, at least 1.
        cost: for `code`: of a step.
        gamma: discount of G_t, 0 to 1.
        indicator: kept steps have advantage 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.digirl import DoublyRobust
        >>> DoublyRobust().makes
        (step('advantage'), step('keep'), step('return'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("score"), step("reward"), step("value", model="critic"))
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"), step("keep"), step("return"))

    lam: float = option(0.5, at_least=0, at_most=1)
    kind: Literal["paper", "code"] = "paper"
    horizon: int = option(10, at_least=1)
    cost: float = 0.05
    gamma: float = option(0.5, at_least=0, at_most=1)
    indicator: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `keep` on steps."""
        rows = Rows(batch, "step")
        valid = rows.valid
        value = np.where(valid, rows.values("value"), 0.0)
        reward = np.where(valid, np.nan_to_num(rows.values("reward"), nan=0.0), 0.0)
        ahead = np.where(rows.last, 0.0, np.append(value[1:], 0.0)[: len(rows)])
        gain = ahead + reward - value
        returned = returns.discounted(reward, rows.draws, gamma=self.gamma)
        if self.kind == "paper":
            left = returns.discounted(np.ones(len(rows)), rows.draws, gamma=1.0) - 1.0
            share = self.lam**left
            advantages = share * np.where(valid, rows.values("score"), 0.0) + (1.0 - share) * gain
            keep = valid & (advantages > 1.0 / self.horizon)
        else:
            advantages = gain - self.cost + returned
            keep = valid & (advantages > 0.0)
        if self.indicator:
            advantages = np.where(keep, 1.0, advantages)
        batch = rows.write(advantage=np.where(valid, advantages, 0.0))
        following = (returned > 0.0).astype(np.float32)
        return batch.with_columns("step", keep=keep.astype(np.uint8), **{"return": following})


DIGIRL = Recipe(
    name="digirl",
    source="arXiv:2406.11896",
    advantage=DoublyRobust(),
    weight=SelectDraws(column="task_advantage", kind="quantile", fraction=0.1),
    loss=(Train(Value(error="cross_entropy"), model="critic"), Imitation(tokens="positive")),
)
