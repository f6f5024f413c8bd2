"""H2O, when to trust your simulator: a critic learns from simulated steps as far as their dynamics look real.

    ratio = P_real(s' | s, a) / P_sim(s' | s, a) = odds(real | s, a, s') / odds(real | s, a)
    L_critic = mean over real of (V - y)^2 + mean over simulated of clip(ratio, 1e-5, 1) (V - y)^2
               + 0.01 (log sum over simulated of omega exp(V) - mean over real of V),     y_t = r_t + 0.99 V'(s_{t+1})
    omega = u / sum of u,   u = clip(-log ratio, 0, 10)
    L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A),   A_t = y_t - V(s_t)
    V' <- 0.995 V' + 0.005 V after each optimizer step

Steps whose tools were simulated enter a batch beside real ones. The first term trusts a simulated step less, the second
one lowers the values of steps whose simulator is wrong. Two discriminators compute the odds, one with and one without
the next state; they are trained outside of the recipe, on steps of both kinds. The slope of the logarithm follows the
values before the update, which is exact for one optimizer step.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, discriminators: left out: they are classifiers beside the recipe, whose probabilities are step columns.
    - C2, dynamics ratio: `SimulatorTrust`.
    - C3, TD loss: `SimulatorTrust` and `TrustedValue`; the target is that of `SlowTargets`.
    - C4, dynamics gap: `SimulatorTrust`, of the observed next state.
    - C5, value penalty: `SimulatorTrust` makes its slope, `TrustedValue` adds slope times value.
    - C6, policy and targets: an actor of tokens has no gradient through its action; `Policy` follows the critic's
      advantages. `SyncModel` of the critic after each optimizer step.

Differs:
    - Critics: two of actions, of which the smaller counts, in the code; one of states here.
    - Gap: the mean over ten next states with noise in the code; tokens have no noise, so that it is of one here.
    - End: a step after which a rollout was cut off has its reward as its target, as at a true end.
    - Clip range: 0.2 of the policy's ratio; the actor of the paper has none.

Source: When to Trust Your Simulator: Dynamics-Aware Hybrid Offline-and-Online Reinforcement Learning
(arXiv:2206.13464). Needs: rewards of steps; the step columns `real_probability` and `real_action_probability`, NaN on
real steps; the critic, as step column `value`, and its slow copy `target`, as `target_value`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, returns
from agentrl_core.component import BatchComponent, Column, Rows, option, step, token
from agentrl_core.loss import Policy, Tokens, Train, WeightedLoss, metric_sums
from agentrl_core.schedule import SyncModel

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class SlowTargets(BatchComponent):
    """Makes targets of steps by a slow copy of the critic: columns `return` and `advantage`.

    return = reward + gamma * `target_value` of the next step, or the reward alone at the end; advantage = return -
    `value`. A step without a reward was paid 0.

    Args:
        gamma: discount from step to step, 0 to 1.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.h2o import SlowTargets
        >>> SlowTargets().makes
        (step('advantage'), step('return'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (
        step("reward"),
        step("value", model="critic"),
        step("target_value", model="target"),
    )
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"), step("return"))

    gamma: float = option(0.99, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `return` and `advantage` on steps."""
        rows = Rows(batch, "step")
        reward, slow = (np.nan_to_num(rows.values(name), nan=0.0) for name in ("reward", "target_value"))
        _, returned = returns.gae(reward, slow, rows.draws, gamma=self.gamma, lam=0.0)
        returned = np.where(rows.valid, returned, 0.0)
        advantage = np.where(rows.valid, returned - rows.values("value"), 0.0)
        return rows.write(advantage=advantage, **{"return": returned})


@dataclass(frozen=True)
class SimulatorTrust(BatchComponent):
    """Makes what a critic learns from each step: `trust`, a weight of its error, and `slope`, of its value.

    The formulas are those of the file, times the number of steps: their mean over all steps is the sum of a mean over
    real and one over simulated steps. If a probability is not known, the step is real. A batch without simulated steps
    has no slopes.

    Args:
        at_least: smallest ratio.
        at_most: largest ratio.
        penalty: coefficient of the slopes.
        gap_at_most: largest u.

    Raises:
        RecipeError: an option is out of range, or the bounds are out of order.

    Example:
        >>> from agentrl_core.recipes.h2o import SimulatorTrust
        >>> SimulatorTrust().makes
        (step('trust'), step('slope'))
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (
        step("real_probability", model="discriminator"),
        step("real_action_probability", model="discriminator"),
        step("value", model="critic"),
    )
    makes: ClassVar[tuple[Column, ...]] = (step("trust"), step("slope"))

    at_least: float = option(1e-5, above=0)
    at_most: float = option(1.0, above=0)
    penalty: float = option(0.01, at_least=0)
    gap_at_most: float = option(10.0, above=0)

    def check_options(self) -> None:
        """Bounds are in order."""
        self.require(self.at_least <= self.at_most, "at_most", f"give a number of at least {self.at_least}")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `trust` and `slope` on steps."""
        rows = Rows(batch, "step")
        gaps = _log_odds(rows.values("real_action_probability")) - _log_odds(rows.values("real_probability"))
        simulated = rows.valid & np.isfinite(gaps)
        real = rows.valid & ~simulated
        gaps = np.where(simulated, gaps, 0.0)
        of_real, of_simulated = (rows.valid.sum() / max(kind.sum(), 1) for kind in (real, simulated))
        ratios = np.clip(np.exp(-gaps), self.at_least, self.at_most)
        trust = np.where(simulated, of_simulated * ratios, np.where(real, of_real, 0.0))
        slopes = np.zeros(len(rows))
        if simulated.any():
            values = rows.values("value")
            shares = np.where(simulated, np.clip(gaps, 1e-45, self.gap_at_most), 0.0)
            shares = shares * np.exp(np.where(simulated, values - values[simulated].max(), 0.0))
            slopes = self.penalty * (rows.valid.sum() * shares / shares.sum() - of_real * real)
        return rows.write(trust=trust, slope=slopes)


def _log_odds(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = np.clip(probabilities, 1e-9, 1.0 - 1e-9)
    return np.asarray(np.log(inside) - np.log1p(-inside))


@dataclass(frozen=True)
class TrustedValue(WeightedLoss):
    """Trains a critic of steps by what each step is trusted with.

        L = sum of w [trust (V - R)^2 + slope V]

    V is the critic's value at the first trained token of a step, R the stream `return`.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.

    Example:
        >>> from agentrl_core.recipes.h2o import TrustedValue
        >>> TrustedValue("step_mean").needs
        (token('return'), token('trust'), token('slope'))
    """

    @property
    def of_steps(self) -> bool:
        """Always."""
        return True

    def own_reads(self) -> Iterable[str | Column]:
        """Weights, returns and what steps are trusted with."""
        return ("weight_kl", token("return"), token("trust"), token("slope"))

    def own_reads_outputs(self) -> Iterable[str]:
        """The value."""
        return ("value",)

    def own_foldable(self) -> bool:
        """No: branches that share a token may have different returns."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The errors and values, weighted, and metrics."""
        value = tokens.output("value")
        error = (value - tokens.stream("return")).square()
        cost = tokens.stream("trust") * error + tokens.stream("slope") * value
        return (tokens.stream("weight_kl") * cost).sum(), metric_sums(tokens, value=value, value_error=error)


H2O = Recipe(
    name="h2o",
    source="arXiv:2206.13464",
    frozen=("discriminator",),  # trained outside of the recipe, on steps of both kinds
    advantage=SlowTargets(),
    weight=SimulatorTrust(),
    loss=(Train(TrustedValue("step_mean"), model="critic"), Policy()),
    hooks=SyncModel("critic", "target", mix=0.005, unit="steps", own_steps=True),
)
