"""H2O, when to trust your simulator: train a critic on simulated steps, weighted by how real their dynamics look.

    ratio = P_real(s' | s, a) / P_sim(s' | s, a) = odds(real | s, a, s') / odds(real | s, a)
    L_critic = mean over real of (V - y)^2 + mean over simulated of clip(ratio, 1e-5, 1) (V - y)^2
               + 0.01 (log sum over simulated of omega exp(V) - mean over real of V),     y_t = r_t + 0.99 V'(s_{t+1})
    omega = u / sum of u,   u = clip(-log ratio, 0, 10)
    L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A),   A_t = y_t - V(s_t)
    V' <- 0.995 V' + 0.005 V after each optimizer step

A batch contains real steps and steps with simulated tools. The first line of L_critic gives simulated steps a smaller
weight; the second line lowers the values of steps at which the simulator is wrong. Two discriminators compute the odds,
one with and one without the next state; they are trained outside of the recipe, on both kinds of steps. The slope of
the logarithm is computed from the values before the update, which is exact for one optimizer step.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, discriminators: left out: they are classifiers outside of the recipe; their probabilities are step columns.
    - C2, dynamics ratio: `SimulatorTrust`.
    - C3, TD loss: `SimulatorTrust` and `TrustedValue`; `SlowTargets` computes the target.
    - C4, dynamics gap: `SimulatorTrust`, for the observed next state.
    - C5, value penalty: `SimulatorTrust` computes its slope, `TrustedValue` adds slope times value.
    - C6, policy and targets: an actor that samples tokens has no gradient through its action, so `Policy` uses the
      critic's advantages. `SyncModel` moves the critic's slow copy after each optimizer step.

Differs:
    - Critics: in the code, two critics of actions, of which the smaller value counts; here one critic of states.
    - Gap: in the code, the mean over ten next states with noise; tokens have no noise, so here one next state is used.
    - End: if a rollout was cut off, the target of its last step is the step's reward, as at a true end.
    - Clip range: 0.2 for the policy's ratio; the paper's actor has none.

Source: When to Trust Your Simulator: Dynamics-Aware Hybrid Offline-and-Online Reinforcement Learning
(arXiv:2206.13464). Needs: rewards of steps; the step columns `real_probability` and `real_action_probability`, NaN on
real steps; the critic's values in the step column `value`, and the values of its slow copy `target` in `target_value`.
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
    """Compute the step columns `return` and `advantage` with a slow copy of the critic.

    return = reward + gamma * `target_value` of the next step, or the reward alone at the end; advantage = return -
    `value`. A step without a reward has reward 0.

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
    """Compute two columns for the critic's loss on steps: `trust` weights the error, `slope` multiplies the value.

    The formulas of the recipe's page are multiplied by the number of steps: the mean over all steps is then the sum of
    a mean over real steps and a mean over simulated ones. If a probability is unknown, the step is real. In a batch
    without simulated steps all slopes are 0.

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
        """Require at_least <= at_most."""
        self.require(self.at_least <= self.at_most, "at_most", f"give a number of at least at_least={self.at_least}")

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
    """Train a critic of steps, with a weight and a slope for each step.

        L = sum of w [trust (V - R)^2 + slope V]

    V is the critic's value at the first trained token of a step, R the stream `return`.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.

    Example:
        >>> from agentrl_core.recipes.h2o import TrustedValue
        >>> TrustedValue("step_mean").needs
        (token('return'), token('trust'), token('slope'))
    """

    @property
    def of_steps(self) -> bool:
        """Return True: each step has a single row."""
        return True

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns that the loss reads: weights, returns, trust and slopes."""
        return ("weight_kl", token("return"), token("trust"), token("slope"))

    def own_reads_outputs(self) -> Iterable[str]:
        """Return the model output that the loss reads, `value`."""
        return ("value",)

    def own_foldable(self) -> bool:
        """Return False: branches that share a token may have different returns."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared errors and the slope terms, weighted and summed over rows, and metrics."""
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
