"""DigiRL: the best steps of the best rollouts are imitated, as two critics judge them (arXiv:2406.11896).

One critic (`value`) expects the outcome of a step, the other that of a task. Of all draws of the batch, the tenth is
kept whose score is furthest above the task's value: the draw column `task_advantage`, which
`BaselineRelative(column="task_value")` makes of a batch of its own. Public code chooses steps otherwise:
`DoublyRobust(kind="code")` with `ImitatedSteps(above=0.0)`. The step critic learns by cross-entropy, from all steps,
whether the rollout succeeds; it has twin heads, of which the smaller counts (`value` `[N, 2]`).

Equations:
    Read: translated notes with the paper's equations, and the public code.

    - 4.2, imitation of what is kept: `Imitation`, mean over the steps that are kept; not computed: in its case.
    - 4.3, advantage of a step: `DoublyRobust(kind="paper")`.
    - 4.3b, filter of steps: `ImitatedSteps(above=0.1)`, 1/H of 10 steps.
    - 4.4, filter of trajectories: `SelectDraws(kind="quantile", fraction=0.1, group_by="batch")`.
    - 4.5, critic of instructions: left out: the fact `task_advantage` has to come from a value of tasks of one's own.
    - 4.6, critic of steps: `Value(kind="cross_entropy")` on `return`, over all steps.
    - C1, filter of the code: `DoublyRobust(kind="code")` with `ImitatedSteps(above=0.0)`; not computed: an option.
    - C2, quantile of the code: the same as 4.4.
    - C3, critic of the code: the target is that of `DoublyRobust(kind="code")`; the loss of the successor is left out:
      every step but the first is a successor, so that it weighs steps otherwise and has no other minimum.

Differs:
    - Log-probability of an action: the sum over its tokens in the paper, their mean here.
    - Replay of earlier trajectories: left out; combine with a component of phase `replay`.
    - Optimizer steps: 20 of the actor and 5 of each critic for 16 trajectories in the code, 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, returns
from agentrl_core.component import BatchComponent, Column, Rows, option, step
from agentrl_core.loss import Imitation, Train, Value
from agentrl_core.weight import SelectDraws

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class DoublyRobust(BatchComponent):
    """Judges each step by the outcome of its rollout and by what a critic expected, for a filter to choose from.

        advantage = lam^h R + (1 - lam^h R) (V_{t+1} + r_t - V_t)

    R is the score of the draw, h how many steps follow the step, V the step column `value` (after the last step: 0), r
    the reward of the step (0 if it has none). `return` is the critic's target: 1 if R is above 0. Draws without a score
    get 0.

    Args:
        lam: 0 to 1.
        kind: `paper`, or `code`: V_{t+1} - V_t - cost + r_t + G_t, with the discounted return G_t; `return` is 1 if
            that is above 0.
        cost: for `code`: of a step.
        gamma: discount of G_t, 0 to 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.digirl import DoublyRobust
        >>> DoublyRobust().makes
        (step('advantage'), step('return'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("score"), step("reward"), step("value", model="critic"))
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"), step("return"))

    lam: float = option(0.5, at_least=0, at_most=1)
    kind: Literal["paper", "code"] = "paper"
    cost: float = 0.05
    gamma: float = option(0.5, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `return` on steps."""
        rows = Rows(batch, "step")
        valid = rows.valid
        value = np.where(valid, rows.values("value"), 0.0)
        reward = np.where(valid, np.nan_to_num(rows.values("reward"), nan=0.0), 0.0)
        ahead = np.where(rows.last, 0.0, np.append(value[1:], 0.0)[: len(rows)])
        gain = ahead + reward - value
        score = np.where(valid, rows.values("score"), 0.0)
        if self.kind == "paper":
            left = returns.discounted(np.ones(len(rows)), rows.draws, gamma=1.0) - 1.0
            outcome = self.lam**left * score
            advantages, succeeded = outcome + (1.0 - outcome) * gain, score > 0.0
        else:
            returned = returns.discounted(reward, rows.draws, gamma=self.gamma)
            advantages, succeeded = gain - self.cost + returned, returned > 0.0
        return rows.write(advantage=np.where(valid, advantages, 0.0), **{"return": succeeded})


@dataclass(frozen=True)
class ImitatedSteps(BatchComponent):
    """Leaves steps out of the loss that were not good enough to be imitated.

    A step is kept where its advantage is above `above`: 1 / (steps that a task may take) in the paper, 0 in public
    code. Steps of draws without a score are left out.

    Args:
        above: the bar, at least 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.digirl import ImitatedSteps
        >>> ImitatedSteps().makes
        (step('keep'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (step("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (step("keep"),)

    above: float = option(0.1, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on steps."""
        rows = Rows(batch, "step")
        advantages = rows.values("advantage").astype(np.float32)  # as the column holds them
        return rows.keep(rows.valid & (advantages > np.float32(self.above)))


DIGIRL = Recipe(
    name="digirl",
    source="arXiv:2406.11896",
    advantage=DoublyRobust(),
    weight=(ImitatedSteps(), SelectDraws(column="task_advantage", kind="quantile", fraction=0.1, group_by="batch")),
    loss=(
        Train(Value("step_mean", kind="cross_entropy", level="step"), model="critic"),
        Imitation("step_mean", tokens="positive"),
    ),
)
