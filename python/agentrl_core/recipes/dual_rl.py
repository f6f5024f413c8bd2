"""Dual RL (f-DVL): train a conservative critic on offline data, and clone actions by its values.

    delta = r_t + 0.99 V_target(s_{t+1}) - V(s_t),   f*(x) = x + x^2 / 4   (Pearson's chi squared)
    L_critic = mean over steps of 0.3 V + 0.7 f*(delta)
    L = - mean over tokens of w log p,   w = max(0, f*'(delta)) = max(0, 1 + delta / 2)

The exponential that other offline methods have in these places explodes where delta is large; a square does not. Values
of the target network are the step column `value`. The share 0.7 is a proposal (0.5 to 0.9).

Source: arXiv:2302.08560. Needs: rewards of steps; the critic, as step column `value`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import BatchComponent, Column, Rows, option, step, token
from agentrl_core.loss import Imitation, Tokens, Train, WeightedLoss, metric_sums

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class ConjugateWeight(BatchComponent):
    """Makes the weight with which a step is cloned: step column `imitation` = max(0, 1 + advantage / 2).

    Example:
        >>> from agentrl_core.recipes.dual_rl import ConjugateWeight
        >>> ConjugateWeight().makes
        (step('imitation'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (step("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (step("imitation"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `imitation` on steps."""
        rows = Rows(batch, "step")
        return rows.write(imitation=np.maximum(0.0, 1.0 + rows.values("advantage") / 2.0))


@dataclass(frozen=True)
class DualValue(WeightedLoss):
    """Trains a critic of steps to be low, except at steps where the data prevents it.

        L = sum of w [(1 - share) V + share f*(R - V)],   f*(x) = x + x^2 / 4,   R the stream `return`

    V is the critic's value at the first trained token of a step, before the action.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        share: between 0 and 1.

    Example:
        >>> from agentrl_core.recipes.dual_rl import DualValue
        >>> DualValue().needs
        (token('return'),)
    """

    share: float = option(0.7, above=0, below=1)

    @property
    def of_steps(self) -> bool:
        """Always."""
        return True

    def own_reads(self) -> Iterable[str | Column]:
        """Weights and returns."""
        return ("weight_kl", token("return"))

    def own_reads_outputs(self) -> Iterable[str]:
        """The value."""
        return ("value",)

    def own_foldable(self) -> bool:
        """No: branches that share a token may have different returns."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The dual of the values, and metrics."""
        value = tokens.output("value")
        away = tokens.stream("return") - value
        cost = (1.0 - self.share) * value + self.share * (away + away.square() / 4.0)
        return (tokens.stream("weight_kl") * cost).sum(), metric_sums(tokens, value=value, value_error=cost)


DUAL_RL = Recipe(
    name="dual_rl",
    source="arXiv:2302.08560",
    advantage=Gae(level="step", column="reward", outcome="", gamma=0.99, lam=0.0),
    weight=ConjugateWeight(),
    loss=(Train(DualValue("step_mean"), model="critic"), Train(Imitation("token_mean", tokens="imitation"))),
)
