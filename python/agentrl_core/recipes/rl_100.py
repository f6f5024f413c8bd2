"""RL-100: keep an iteration's policy only if stored trajectories rate it as better (arXiv:2510.14830).

    L = - mean over trajectories of the mean over tokens of min(r A, clip(r, 0.8, 1.2) A), four epochs;   then
    J(old) = mean of R,   J(new) = sum of w R / sum of w,   w = product over a trajectory's tokens of p_new / p_old
    J(new) < J(old) + margin:   the policy is again what it was when the iteration began

J(new) >= J(old) + margin where sum of w (R - J(old) - margin) >= 0, which is how it is asked here: in a last pass over
the batch, stage `evaluation`, whose loss is minus that sum over the number of trajectories, and whose step is not
taken. A policy is judged by the trajectories that it was trained on, so it looks better than it is: give a margin
where that matters. Optimizers keep what they remember of updates that are undone.

Of the paper only the abstract could be read: an offline policy evaluation gates PPO-style updates, there of a diffusion
policy. The estimator is a choice of ours, as are advantages by group, four epochs and a margin of 0. Imitation, which
comes before, is not part of the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, token
from agentrl_core.loss import Policy, Tokens, Train, Unit, WeightedLoss, metric_sums
from agentrl_core.schedule import Above, Hook, RepeatStage, SkipStep

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class RollbackModels(Hook):
    """Gives every model that `recipe.updates` was given back what it was when the iteration began.

    Args:
        when: where what the updates did is not kept, such as Above("forward_kl", 0.1).

    Example:
        >>> from agentrl_core.schedule import Above
        >>> from agentrl_core.recipes.rl_100 import RollbackModels
        >>> RollbackModels(when=Above("forward_kl", 0.1)).unit
        'iterations'
    """

    restores: ClassVar[bool] = True


@dataclass(frozen=True)
class Gain(BatchComponent):
    """Makes the surplus of each trajectory over what a policy has to earn: gain = R - mean of R - margin.

    Args:
        margin: by how much a policy has to be better than the one before it.

    Example:
        >>> from agentrl_core.recipes.rl_100 import Gain
        >>> Gain(margin=0.1).needs, Gain(margin=0.1).makes
        ((draw('score'),), (token('gain'),))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (token("gain"),)

    margin: float = option(0.0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `gain` on tokens."""
        scores = np.asarray(batch.column("score", "draw"), np.float64)
        known = scores[np.isfinite(scores)]
        rows = Rows(batch, "token")
        mean = known.mean() if len(known) else 0.0
        return rows.write(gain=np.where(rows.valid, rows.values("score") - mean - self.margin, 0.0))


@dataclass(frozen=True)
class ExpectedGain(WeightedLoss):
    """Estimates whether a policy is better than the one that sampled, by weighted importance sampling: below 0, it is.

        L = - mean over trajectories of w gain,   w = exp(sum over tokens of log p - log p_old)

    Metric: `importance`, the mean of w over tokens.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.

    Example:
        >>> from agentrl_core.recipes.rl_100 import ExpectedGain
        >>> ExpectedGain().unit
        'trajectory'
    """

    def own_reads(self) -> Iterable[str | Column]:
        """Weights, old log-probs, gains, and which trajectory a token is of."""
        return ("weight_kl", "old_logprob", "sequence", token("gain"))

    def own_unit(self) -> Unit:
        """The trajectory, over which ratios are multiplied."""
        return "trajectory"

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Minus the weighted gain, and the weights."""
        of = tokens.segments("sequence")
        importance = of.spread(of.sum(tokens.log_ratio).clamp(max=20.0).exp())
        loss = -(tokens.stream("weight_kl") * importance * tokens.stream("gain")).sum()
        return loss, metric_sums(tokens, importance=importance)


RL_100 = Recipe(
    name="rl_100",
    source="arXiv:2510.14830",
    advantage=(GroupRelative(), Gain()),
    loss=(Train(Policy(), epochs=4), Train(ExpectedGain(), stage="evaluation")),
    hooks=(
        RepeatStage("evaluation"),
        SkipStep(when=Above("importance", 0.0)),
        RollbackModels(when=Above("evaluation.loss", 0.0)),
    ),
)
