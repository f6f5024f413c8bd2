"""FixPO: penalise the divergence from the old policy, and fetch back what went too far (arXiv:2312.05405).

    L = mean over tokens of (- r A + beta KL(p_old || p) - 0.01 H),   beta by Adam on beta (0.2 - 2 max KL), at least 0
    then passes over the batch on beta KL alone, up to 10, until max KL <= 0.2

after every step of the policy beta makes one of its own. A batch has 10 epochs of 16 steps, since the divergence has no
gradient at the first one, where the policy is still the old one. Advantages are GAE's, compared over the batch. There
is no clip. In the passes, mini-batches whose max KL is at most 0.2 are skipped.

Equations:
    Read: the authors' code, its launcher and the paper's abstract.

    - C1, primary loss: `Policy(clip=None, entropy=0.01)` and `OldDivergence`; the critic's `Value` has the factor 1/2.
    - C2, coefficient: `Multiplier(target=0.2, factor=2.0, rate=0.01)`.
    - C3, fix-up: `FixUp`, repeated by `RepeatStage`; `SkipStep` leaves out mini-batches within the bound.
    - C4, advantage: `Gae(gamma=0.99, lam=0.95)`, then `GroupRelative` over all tokens, std of n - 1.

Differs:
    - Bound and C: 0.2 and 2 in the code's class and here, 0.5 and 3 in the launcher of the experiments, which also has
      neither the entropy nor compared advantages; the paper's own values were not read.
    - Divergence: of whole distributions in the code, the estimate k3 of the sampled tokens here, which is equal on
      average.
    - Largest divergence: over states in the code, over the means of trajectories here, since an estimate of one token
      is coarse.
    - Passes: without a bound in the code, at most 10 here; they follow all epochs here and each epoch in the code.
    - Beta in a skipped mini-batch: it moves here.
    - Advantages: compared over a mini-batch in the code, over the batch here.
    - KL: the penalty is on the old policy; there is no reference.
    - Optimizer: one for all in the code; the critic is a model with its own here.

Needs: the models critic and policy; `value` of each token, by the critic before its first step.
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
    """Price of a bound, moved by Adam: it rises while `factor` times the metric is above the bound.

        coefficient <- max(0, coefficient - Adam(target - factor metric)),   betas 0.9 and 0.999

    Args:
        metric: name of the metric.
        target: the bound.
        factor: C: the metric is held at target / C.
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
        """The metric."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """The start, and the least."""
        return self.start, 0.0

    def begin(self) -> State:
        """The start, with Adam's moments and the number of its steps."""
        return {"value": self.start, "first": 0.0, "second": 0.0, "steps": 0}

    def move(self, state: State, *metrics: float) -> State:
        """One step of Adam."""
        gradient = self.target - self.factor * metrics[0]
        steps = state["steps"] + 1
        first = 0.9 * state["first"] + 0.1 * gradient
        second = 0.999 * state["second"] + 0.001 * gradient**2
        scale = math.sqrt(second / (1.0 - 0.999**steps)) + 1e-8
        value = max(0.0, state["value"] - self.rate * first / (1.0 - 0.9**steps) / scale)
        return {"value": value, "first": first, "second": second, "steps": steps}

    def value(self, state: State) -> float:
        """The coefficient."""
        return float(state["value"])


@dataclass(frozen=True)
class OldDivergence(WeightedLoss):
    """Pulls the policy back to the one that sampled, and measures how far the furthest trajectory has gone.

        L = coefficient * sum of w (exp(x) - x - 1),   x = log p - log p_old

    Metric: `max_kl`, the largest mean of that estimate over the tokens of a trajectory.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        coefficient: at least 0.

    Example:
        >>> from agentrl_core.recipes.fix_po import OldDivergence
        >>> OldDivergence().unit
        'trajectory'
    """

    coefficient: float = option(1.0, at_least=0)

    def own_reads(self) -> Iterable[str | Column]:
        """Weights, old log-probs, and which trajectory a token is of."""
        return ("weight_kl", "old_logprob", "sequence")

    def own_unit(self) -> Unit:
        """The trajectory, of which a mean is taken."""
        return "trajectory"

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The divergence of all rows, and how far the furthest trajectory is."""
        away = tokens.log_ratio_to("old_logprob")
        estimate = away.expm1() - away
        loss = self.coefficient * (tokens.stream("weight_kl") * estimate).sum()
        means = tokens.segments("sequence").mean(estimate.detach())
        largest = torch.nn.functional.pad(means, (0, 1)).max()  # 0 where there is no row
        return loss, {**metric_sums(tokens, old_kl=estimate), "max_kl": largest}


@dataclass(frozen=True)
class FixUp(OldDivergence):
    """The divergence alone, in a stage of its own: its largest one is also the metric `max_fixup_kl`.

    Example:
        >>> from agentrl_core.recipes.fix_po import FixUp
        >>> FixUp().unit
        'trajectory'
    """

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The divergence of all rows, and how far the furthest trajectory is."""
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
