"""Dual RL (f-DVL): fit a value with an f-divergence instead of an exponential, and use it to clone offline actions.

    d_t = r_t + 0.99 V(s_{t+1}) - V(s_t)
    L_critic = mean over steps of 0.8 max(d, 0) - 0.2 d      (total variation; chi-squared: max(d + d^2 / 4, 0))
    L = - mean over tokens of w log p,   w = min(exp(3 d), 100)

The value loss of other offline methods contains an exponential, which explodes if d is large; a linear or quadratic
function does not. In the paper, Q-functions of actions are fitted to r + 0.99 V(s'), and d is the minimum of two slow
copies of Q, minus V. Here d is one sample of that target minus V; in a deterministic environment the sample is Q
itself. V in the target, and in w, is the step column `value`, computed before the update.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, value by chi-squared: `DualValue(divergence="chi_squared")`.
    - C2, value by total variation: `DualValue`.
    - C3, value by reverse KL: left out: it is the Gumbel regression that the paper replaces.
    - C4, critic: its target is `return` of `Gae(lam=0.0)`; there are no Q-networks, and so no Huber loss of them.
    - C5, actor: `ExponentialWeight` and `Imitation(tokens="imitation")`.
    - C6, slow critics: left out: `value` comes from the critic before the update. In your own loop, move a copy with
      `schedule.SyncModel("critic", "target", mix=0.005, unit="steps", own_steps=True)` and annotate `value` with it.

Differs:
    - Divergence: total variation with lambda 0.8, one of the README's two settings. The other setting is chi-squared
      with lambda 1, `DualValue("step_mean", divergence="chi_squared", share=1.0)`, which has no linear term.
    - Value in the weights of actions: computed after the critic's update in the code, before it here.
    - Temperature: 3, as for locomotion; 10 for mazes.

Source: arXiv:2302.08560. Needs: rewards of steps; the critic's values as step column `value`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import BatchComponent, Column, Rows, option, step, token
from agentrl_core.loss import Imitation, Tokens, Train, WeightedLoss, metric_sums

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class ExponentialWeight(BatchComponent):
    """Compute the cloning weight of each step: step column `imitation` = min(exp(scale * advantage), at_most).

    Args:
        scale: temperature of the paper; larger values make weights less equal.
        at_most: the largest weight.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.dual_rl import ExponentialWeight
        >>> ExponentialWeight().makes
        (step('imitation'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (step("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (step("imitation"),)

    scale: float = option(3.0, above=0)
    at_most: float = option(100.0, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `imitation` on steps."""
        rows = Rows(batch, "step")
        powers = np.minimum(self.scale * rows.values("advantage"), np.log(self.at_most))
        return rows.write(imitation=np.exp(powers))


@dataclass(frozen=True)
class DualValue(WeightedLoss):
    """Fit a critic of steps to the upper values of its targets, with the dual of a divergence.

        L = sum of w [share f(d) - (1 - share) d],   d = R - V,   R the stream `return`
        f(d) = max(d, 0) of `total_variation`, max(d + d^2 / 4, 0) of `chi_squared`

    V is the critic's value at the first trained token of a step, before the action.

    Args:
        aggregate: see `WeightedLoss`.
        constant: see `WeightedLoss`.
        divergence: the function f.
        share: lambda, above 0 and at most 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.dual_rl import DualValue
        >>> DualValue().needs
        (token('return'),)
    """

    divergence: Literal["total_variation", "chi_squared"] = "total_variation"
    share: float = option(0.8, above=0, at_most=1)

    @property
    def of_steps(self) -> bool:
        """Return True: each step has a single row."""
        return True

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns that the loss reads: weights and returns."""
        return ("weight_kl", token("return"))

    def own_reads_outputs(self) -> Iterable[str]:
        """Return the model output that the loss reads: the value."""
        return ("value",)

    def own_foldable(self) -> bool:
        """Return False: branches that share a token may have different returns."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the values, and its metrics."""
        value = tokens.output("value")
        residual = tokens.stream("return") - value
        square = residual.square() / 4.0 if self.divergence == "chi_squared" else 0.0
        cost = self.share * (residual + square).relu() - (1.0 - self.share) * residual
        return (tokens.stream("weight_kl") * cost).sum(), metric_sums(tokens, value=value, value_error=cost)


DUAL_RL = Recipe(
    name="dual_rl",
    source="arXiv:2302.08560",
    advantage=Gae(level="step", column="reward", outcome="", gamma=0.99, lam=0.0),
    weight=ExponentialWeight(),
    loss=(Train(DualValue("step_mean"), model="critic"), Train(Imitation("token_mean", tokens="imitation"))),
)
