"""FixPO: penalise the divergence from the old policy, and add passes until it is within a bound (arXiv:2312.05405).

    L = mean over tokens of (- r A + beta KL(p_old || p) - 0.01 H),   beta by Adam on beta (0.2 - 2 max KL), at least 0
    then up to 10 passes over the batch on beta KL alone, until max KL <= 0.2

beta takes one step of its own after every step of the policy. A batch has 10 epochs of 16 steps, since the divergence
has no gradient at the first step, where the policy still equals the old one. Advantages are GAE's, normalised over the
batch. There is no clip. The passes skip mini-batches whose max KL is below 0.2.

Equations:
    Read: the authors' code, its launcher and the paper's abstract.

    - C1, primary loss: `Policy(clip=None, entropy=0.01)` and `OldDivergence`; the critic's `Value` has the factor 1/2.
    - C2, coefficient: `Multiplier(target=0.2, factor=2.0, rate=0.01)`.
    - C3, fix-up: `FixUp`, repeated by `RepeatStage`; `SkipStep` skips mini-batches within the bound.
    - C4, advantage: `Gae(gamma=0.99, lam=0.95)`, then `GroupRelative` over all tokens; its std divides by n - 1.

Differs:
    - Bound and C: 0.2 and 2 in the code's class and here; 0.5 and 3 in the launcher of the experiments, which uses
      neither the entropy bonus nor normalised advantages. The paper's own values were not read.
    - Divergence: of whole distributions in the code; here the estimate k3 on the sampled tokens, which is equal on
      average.
    - Largest divergence: the largest over states in the code; here the largest over the means of trajectories, since
      the estimate of one token is coarse.
    - Passes: without a limit in the code, at most 10 here; here they follow all epochs, in the code each epoch.
    - Beta in a skipped mini-batch: beta still moves here.
    - Advantages: normalised over a mini-batch in the code, over the batch here.
    - KL: the penalty is on the divergence from the old policy; there is no reference model.
    - Optimizer: one for everything in the code; here the critic is a separate model with its own optimizer.

Needs: the models critic and policy; the column `value` of each token, computed by the critic before its first step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component import Column, State, option
from agentrl_core.loss import Policy, Sum, Tokens, Train, Unit, Value, WeightedLoss, metric_sums, torch
from agentrl_core.schedule import Above, Below, Controller, RepeatStage, SkipStep

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Multiplier(Controller):
    """Penalty coefficient moved by Adam: it rises while `factor` times the metric exceeds the bound.

        coefficient <- max(0, coefficient - Adam(target - factor metric)),   betas 0.9 and 0.999

    Args:
        metric: name of the metric.
        target: the bound.
        factor: C; the metric is held at target / C.
        rate: learning rate of Adam.
        start: the coefficient before the first move.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.fix_po import Multiplier
        >>> price = Multiplier("max_kl", target=0.2)
        >>> round(price.value(price.moved(price.initial_state(), {"max_kl": 0.16})), 6)
        1.01
    """

    metric: str = option("max_kl", filled=True)
    target: float = option(0.2, above=0)
    factor: float = option(2.0, above=0)
    rate: float = option(0.01, above=0)
    start: float = option(1.0, at_least=0)

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the name of the metric that the controller reads."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Return possible values: the start, and 0, the smallest coefficient."""
        return self.start, 0.0

    def begin(self) -> State:
        """Return the first state: the start, with Adam's moments and number of steps at 0."""
        return {"value": self.start, "first": 0.0, "second": 0.0, "steps": 0}

    def move(self, state: State, *metrics: float) -> State:
        """Return the state after one step of Adam."""
        gradient = self.target - self.factor * metrics[0]
        steps = state["steps"] + 1
        first = 0.9 * state["first"] + 0.1 * gradient
        second = 0.999 * state["second"] + 0.001 * gradient**2
        scale = math.sqrt(second / (1.0 - 0.999**steps)) + 1e-8
        value = max(0.0, state["value"] - self.rate * first / (1.0 - 0.9**steps) / scale)
        return {"value": value, "first": first, "second": second, "steps": steps}

    def value(self, state: State) -> float:
        """Return the coefficient."""
        return float(state["value"])


@dataclass(frozen=True)
class OldDivergence(WeightedLoss):
    """Penalise the divergence from the policy that sampled, and report the largest divergence of a trajectory.

        L = coefficient * sum of w (exp(x) - x - 1),   x = log p - log p_old

    Metric: `max_kl`, the largest mean of exp(x) - x - 1 over the tokens of a trajectory.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        coefficient: factor of the loss, at least 0.

    Example:
        >>> from agentrl_core.recipes.fix_po import OldDivergence
        >>> OldDivergence().unit
        'trajectory'
    """

    coefficient: float = option(1.0, at_least=0)

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns that the loss reads: weights, old log-probs and the trajectory of each token."""
        return ("weight_kl", "old_logprob", "sequence")

    def own_unit(self) -> Unit:
        """Return `trajectory`, since `max_kl` is computed from the mean of each trajectory."""
        return "trajectory"

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted divergence, summed over rows, and metrics, with `max_kl` among them."""
        log_ratio = tokens.log_ratio_to("old_logprob")
        estimate = log_ratio.expm1() - log_ratio
        loss = self.coefficient * (tokens.stream("weight_kl") * estimate).sum()
        means = tokens.segments("sequence").mean(estimate.detach())
        largest = torch.nn.functional.pad(means, (0, 1)).max()  # 0 if there are no rows
        return loss, {**metric_sums(tokens, old_kl=estimate), "max_kl": largest}


@dataclass(frozen=True)
class FixUp(OldDivergence):
    """Train on the divergence alone, in a separate stage; its largest value is also the metric `max_fixup_kl`.

    Example:
        >>> from agentrl_core.recipes.fix_po import FixUp
        >>> FixUp().unit
        'trajectory'
    """

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted divergence, summed over rows, and metrics, with `max_fixup_kl` among them."""
        loss, metrics = super().evaluate(tokens)
        return loss, {**metrics, "max_fixup_kl": metrics["max_kl"]}


_BETA = Multiplier("max_kl", target=0.2, factor=2.0, rate=0.01, every="step")

FIX_PO = Recipe(
    name="fix_po",
    source="arXiv:2312.05405",
    advantage=(
        Gae(gamma=0.99, lam=0.95),
        GroupRelative(column="advantage", level="token", group_by="batch"),
    ),
    loss=(
        Train(Value("token_mean"), model="critic"),
        Train(Sum(Policy(clip=None, entropy=0.01), OldDivergence("token_mean", coefficient=_BETA))),
        Train(FixUp("token_mean", coefficient=_BETA), stage="fixup", epochs=1, minibatches=8),
    ),
    hooks=(
        RepeatStage("fixup", at_most=10, when=Above("max_fixup_kl", 0.2)),
        SkipStep(when=Below("max_fixup_kl", 0.2)),
    ),
    epochs=10,
    minibatches=16,
)
