"""DigiRL: imitate the best steps of the best rollouts, chosen with two critics (arXiv:2406.11896).

The instruction critic predicts the outcome of a task (`task_value`), the step critic the outcome from a step
(`value`). Of all draws of the batch, the recipe keeps the tenth whose score is furthest above the value of its task,
which works as a curriculum. Of their steps it keeps those with a doubly robust advantage above 1/H. The
log-probability of an action is the sum over its tokens. Both critics learn by cross-entropy whether the rollout
succeeds, from all draws; their columns are probabilities, the sigmoid of their outputs. In the public code the step
critic has two heads, of which the smaller output counts (`value` `[N, 2]`), and steps are chosen by
`DoublyRobust(kind="code")` with `ImitatedSteps(above=0.0)`.

Equations:
    Read: translated notes with the paper's equations, and the public code.

    - 4.2, imitation of what is kept: `Imitation`, the sum over the tokens of a step, mean over the kept steps.
    - 4.3, advantage of a step: `DoublyRobust(kind="paper")`.
    - 4.3b, filter of steps: `ImitatedSteps(above=0.1)`, 1/H for H = 10 steps.
    - 4.4, filter of trajectories: `TaskAdvantage`, `SelectDraws(kind="quantile", fraction=0.1, group_by="batch")`.
    - 4.5, critic of instructions: `Value(kind="cross_entropy")` on `return`, which is equal for all steps of a draw.
    - 4.6, critic of steps: `Value(kind="cross_entropy")` on `return`, over all steps.
    - C1, filter of the code: `DoublyRobust(kind="code")` with `ImitatedSteps(above=0.0)`; not computed: an option.
    - C2, quantile of the code: the same as 4.4.
    - C3, critic of the code: the target is that of `DoublyRobust(kind="code")`. The code's loss on the next step is
      left out: every step but the first is the next step of another, so this loss only changes the weights of steps
      and has the same minimum.

Differs:
    - Replay of earlier trajectories: left out; combine the recipe with a component of phase `replay`.
    - Rows of an optimizer step: 128 sampled ones in the code, all kept rows here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, returns
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, step
from agentrl_core.loss import Imitation, Train, Value
from agentrl_core.weight import SelectDraws

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class DoublyRobust(BatchComponent):
    """Estimate the advantage of each step from the rollout's outcome and a critic's values, to filter steps.

        advantage = lam^h R + (1 - lam^h R) (V_{t+1} + r_t - V_t)

    R is the score of the draw, h the number of steps after the step, V the step column `value` (0 after the last
    step), r the reward of the step (0 if it has none). `return` is the critic's target: 1 if R is above 0. Draws
    without a score get 0.

    Args:
        lam: lambda, 0 to 1.
        kind: `paper`, or `code`: V_{t+1} - V_t - cost + r_t + G_t, with the discounted return G_t; `return` is 1 if
            G_t is above 0.
        cost: for `code`: cost of a step.
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
        next_value = np.where(rows.last, 0.0, np.append(value[1:], 0.0)[: len(rows)])
        gain = next_value + reward - value
        score = np.where(valid, rows.values("score"), 0.0)
        if self.kind == "paper":
            remaining_steps = returns.discounted(np.ones(len(rows)), rows.draws, gamma=1.0) - 1.0
            outcome = self.lam**remaining_steps * score
            advantages, succeeded = outcome + (1.0 - outcome) * gain, score > 0.0
        else:
            returned = returns.discounted(reward, rows.draws, gamma=self.gamma)
            advantages, succeeded = gain - self.cost + returned, returned > 0.0
        return rows.write(advantage=np.where(valid, advantages, 0.0), **{"return": succeeded})


@dataclass(frozen=True)
class TaskAdvantage(BatchComponent):
    """Compare the outcome of a draw with the prediction of a critic of instructions: `task_advantage` = score - V(c).

    V(c) is the step column `task_value` of the first step of the draw, which the critic computes from the text before
    the first action. Draws without a score get NaN.

    Example:
        >>> from agentrl_core.recipes.digirl import TaskAdvantage
        >>> TaskAdvantage().makes
        (draw('task_advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), step("task_value", model="instruction_critic"))
    makes: ClassVar[tuple[Column, ...]] = (draw("task_advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `task_advantage` on draws."""
        rows, steps = Rows(batch, "draw"), Rows(batch, "step")
        expected = np.full(len(rows), np.nan)
        draws_with_steps, first = np.unique(steps.draws, return_index=True)
        expected[draws_with_steps] = steps.values("task_value")[first]
        return rows.write(task_advantage=np.where(rows.valid, rows.values("score") - expected, np.nan))


@dataclass(frozen=True)
class ImitatedSteps(BatchComponent):
    """Leave steps out of the loss whose advantage is too low for imitation.

    A step is kept if its advantage is above `above`: 1 / (largest number of steps of a task) in the paper, 0 in the
    public code. Steps of draws without a score are left out. `imitation` is the number of trained tokens of a step,
    so that a mean over its tokens becomes their sum: the log-probability of the action.

    Args:
        above: threshold of the advantage, at least 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.digirl import ImitatedSteps
        >>> ImitatedSteps().makes
        (step('keep'), step('imitation'))
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (step("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (step("keep"), step("imitation"))

    above: float = option(0.1, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `keep` restricted to good steps, and with `imitation`, on steps."""
        rows = Rows(batch, "step")
        advantages = rows.values("advantage").astype(np.float32)  # in the precision of the column
        filtered = rows.keep(rows.valid & (advantages > np.float32(self.above)))
        return Rows(filtered, "step").write(imitation=rows.trained)


DIGIRL = Recipe(
    name="digirl",
    source="arXiv:2406.11896",
    advantage=(DoublyRobust(), TaskAdvantage()),
    weight=(ImitatedSteps(), SelectDraws(column="task_advantage", kind="quantile", fraction=0.1, group_by="batch")),
    loss=(
        Train(Value("sequence_mean", kind="cross_entropy", level="step"), model="instruction_critic", epochs=5),
        Train(Value("step_mean", kind="cross_entropy", level="step"), model="critic", epochs=5),
        Imitation("step_mean", tokens="imitation"),
    ),
    epochs=20,
)
