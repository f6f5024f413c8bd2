"""AC-Flow: imitate steps, weighted by the exponential of a critic's clipped advantage (arXiv:2510.18072).

    A_t = clip(sum of the rewards from t on - V_t, -3, 3),   L_critic = mean over steps of 1/2 (V - R)^2
    L = mean over tokens of - exp(A_t / 1) log p + 0.01 * 1/2 (log p - log p_ref)^2

The policy is not trained in the first 50 iterations. The paper fine-tunes flow models with feedback in the middle of
a generation. Its mechanisms also apply to the steps of agents: minus log p replaces the flow-matching loss, and the
squared log-ratio to the reference replaces the squared distance of velocities. The paper's normalisation of rewards
is left out, because its form was not read.

Equations:
    Read: the abstract, the project page and a review; the paper's text was not read.

    - N1, shaped reward: left out: the sources do not state how rewards are normalised; the bound 3 expects rewards of
      about 1.
    - N2, critic: `Value("step_mean", level="step")`, trained on the sum of the rewards from a step on. This is the
      terminal reward if no other step has a reward.
    - N3, clipped advantage: `Gae` and `BoundedAdvantage`.
    - N4, warm-up: `FreezeModel("policy", until=51)`.
    - N5, critic-weighted update: `CriticWeighted`, `Reinforce`, and `KL` of kind `k2`.

Differs:
    - Constants: the sources state none; the bound 3, 50 iterations, the temperature 1 and 0.01 are proposals.
    - Critic: the loss is half the squared error here, the squared error in the review; the critic has its own
      optimizer.

Needs: rewards of steps; the critic, as step column `value`; the reference model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import BatchComponent, Column, Rows, option, step
from agentrl_core.loss import KL, Policy, Reinforce, Train, Value
from agentrl_core.schedule import FreezeModel

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class BoundedAdvantage(BatchComponent):
    """Clip the advantages of steps to +- `at_most`, so that no single step dominates an update.

    Args:
        at_most: largest absolute advantage, above 0.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.ac_flow import BoundedAdvantage
        >>> BoundedAdvantage().needs
        (step('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"),)

    at_most: float = option(3.0, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the clipped column `advantage` on steps."""
        rows = Rows(batch, "step")
        return rows.write(advantage=np.clip(rows.values("advantage"), -self.at_most, self.at_most))


@dataclass(frozen=True)
class CriticWeighted(BatchComponent):
    """Turn the advantages of steps into imitation weights: advantage <- exp(advantage / temperature).

    Steps of draws without a score get 0.

    Args:
        temperature: above 0; larger values make the weights more equal.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.ac_flow import CriticWeighted
        >>> CriticWeighted().makes
        (step('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"),)

    temperature: float = option(1.0, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the weights as column `advantage` on steps."""
        rows = Rows(batch, "step")
        weights = np.exp(rows.values("advantage") / self.temperature)
        return rows.write(advantage=np.where(rows.valid, weights, 0.0))


AC_FLOW = Recipe(
    name="ac_flow",
    source="arXiv:2510.18072",
    advantage=(Gae(level="step", column="reward", outcome=""), BoundedAdvantage(), CriticWeighted()),
    loss=(
        Train(Value("step_mean", level="step"), model="critic"),
        Policy(clip=None, surrogate=Reinforce(), kl=KL(0.01, "k2")),
    ),
    hooks=FreezeModel("policy", until=51),
)
