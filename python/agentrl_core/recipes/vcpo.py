"""VCPO: reduce the variance of off-policy gradients, by the baseline and by the step size (arXiv:2602.17616).

    w_i = product over the tokens of p_old / p_behaviour,   b = sum w^2 g^2 R / sum w^2 g^2 over the group
    L = - mean over draws of the mean over tokens of min(w, 8) (R - b) / std(R) log p
    rate of a step * sqrt(min(1, ESS / draws)),   ESS = (sum w)^2 / sum w^2

g_i is the norm of the parameter gradient of log p of a whole draw, measured before the updates. There is no clip on the
ratio. ESS uses w without its bound.

Equations:
    Read: the public code and its README, which has the formulas; the paper's text was not read.

    - C1, weight: `SequenceImportance`; `ImportanceWeight(level="sequence", at_most=8.0)` in the loss.
    - C2, effective sample size: `ScaleLearningRate(column="importance")`, over the draws of the step.
    - C3, step size: the same; it changes the learning rate of that step alone.
    - C4, baseline: `BaselineRelative(kind="weighted")`; `GradientSquare(at_most=8.0)` gives the code's W.
    - C5, gradient: `Policy("sequence_mean", clip=None, surrogate=Reinforce())`; `GroupRelative` divides by the std of
      the group, with divisor n, plus 1e-6.
    - P1, baseline of the paper: `BaselineRelative(kind="weighted")` of `GradientSquare`.

Differs:
    - Weights: in the code, of the policy in the backward pass of each step; here, of the policy before the first step
      of a batch. Both agree for one step a batch.
    - Baseline: in the code the gradients in W already contain the truncated weight, and W contains the weight again;
      the README and this recipe have it once.
    - Small sums: the code adds 1e-8 to the sum of W; nothing is added here, and if all W are 0 the baseline is the
      mean.

Needs: `recomputed_logprob` and `gradient_norm`, both of the policy before the first update: `arl.annotate(batch,
"gradient_norm", policy, level="draw")`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import BaselineRelative, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option, sum_rows, token
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.schedule import Hook
from agentrl_core.weight import ImportanceWeight

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class ScaleLearningRate(Hook):
    """Scale the learning rate of an optimizer step in `update.step`, for that step alone.

    With `column`, the factor depends on the effective sample size of the draws that the step trains on (VCPO). With w
    the column, ESS = (sum w)^2 / sum w^2 and rho = ESS / draws, the factor is scale min(1, rho / base)^power.

    Args:
        scale: factor of the rate, at least 0; a Schedule or controller.
        column: draw column with the weights w, not negative; empty: none.
        base: smallest rho at which the rate is not reduced, above 0.
        power: 0.5 for optimizers that divide by the gradient's size, 1 for others.
        model: name of the model whose steps are scaled.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.recipes.vcpo import ScaleLearningRate
        >>> ScaleLearningRate(column="importance").factor(np.array([1.0, 1.0, 0.0, 0.0]))  # ESS = 2 of 4
        0.7071067811865476
    """

    acts_in_step: ClassVar[bool] = True

    scale: float = option(1.0, at_least=0)
    column: str = column_name("", level="draw", optional=True)
    base: float = option(1.0, above=0)
    power: float = option(0.5, above=0)
    model: str = option("policy", filled=True)
    _: KW_ONLY
    unit: Literal["iterations", "steps", "steps_of_iteration"] = "steps"

    def factor(self, weights: NDArray[np.float64] | None) -> float:
        """Return the factor of the learning rate, given the weights of the step's draws."""
        if weights is None or not len(weights):
            return self.scale
        squares = float((weights * weights).sum())
        share = float(weights.sum()) ** 2 / squares / len(weights) if squares else 0.0
        return float(self.scale * min(1.0, share / self.base) ** self.power)


@dataclass(frozen=True)
class SequenceImportance(BatchComponent):
    """Compute the likelihood ratio of each draw between trainer and sampler: draw column `importance`.

    importance = exp(sum over trained tokens of log p_old - log p_behaviour), with the exponent limited to +-20.

    Example:
        >>> from agentrl_core.recipes.vcpo import SequenceImportance
        >>> SequenceImportance().makes
        (draw('importance'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("recomputed_logprob", model="policy"), token("behaviour_logprob"))
    makes: ClassVar[tuple[Column, ...]] = (draw("importance"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `importance` on draws."""
        return Rows(batch, "draw").write(importance=_importance(batch))


@dataclass(frozen=True)
class GradientSquare(BatchComponent):
    """Compute the weight of each draw's score in the baseline: draw column `weighted_gradient_square`.

        (w gradient_norm)^2,    w = importance of `SequenceImportance`

    Args:
        at_most: bound of w inside the gradients that the public code measures: (w min(w, at_most) gradient_norm)^2;
            None: the paper's form.

    Example:
        >>> from agentrl_core.recipes.vcpo import GradientSquare
        >>> GradientSquare().makes
        (draw('weighted_gradient_square'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (*SequenceImportance.needs, draw("gradient_norm", model="policy"))
    makes: ClassVar[tuple[Column, ...]] = (draw("weighted_gradient_square"),)

    at_most: float | None = option(None, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `weighted_gradient_square` on draws."""
        rows, importance = Rows(batch, "draw"), _importance(batch)
        root = importance * rows.values("gradient_norm")
        if self.at_most is not None:
            root *= np.minimum(importance, self.at_most)
        return rows.write(weighted_gradient_square=root * root)


def _importance(batch: Batch) -> NDArray[np.float64]:
    rows = Rows(batch, "token")
    log_ratio = rows.values("recomputed_logprob") - rows.values("behaviour_logprob")
    counted = rows.flags("trainable") & np.isfinite(log_ratio)
    return np.exp(np.clip(sum_rows(np.where(counted, log_ratio, 0.0), rows.draws, batch.num_draws), -20.0, 20.0))


VCPO = Recipe(
    name="vcpo",
    source="arXiv:2602.17616",
    advantage=(
        GradientSquare(),
        BaselineRelative(kind="weighted", column="weighted_gradient_square"),
        GroupRelative(column="advantage", center="none", ddof=0),
    ),
    weight=(SequenceImportance(), ImportanceWeight(level="sequence", at_most=8.0)),
    loss=Policy("sequence_mean", clip=None, surrogate=Reinforce()),
    hooks=ScaleLearningRate(column="importance"),
)
