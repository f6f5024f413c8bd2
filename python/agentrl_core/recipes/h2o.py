"""H2O, when to trust your simulator: steps whose tools were simulated count as much as they look real.

    weight of a step = clip(D / (1 - D), 0.1, 2),   D: how likely a discriminator takes the step for a real one

Real steps weigh 1. A discriminator of state, action and next state computes D, on a batch of both kinds; the bounds are
not given. The paper learns a Q-function from both; here the weights enter GRPO.

Source: When to Trust Your Simulator: Dynamics-Aware Hybrid Offline-and-Online Reinforcement Learning
(arXiv:2206.13464). Needs: the step column `real_probability`, NaN on real steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, option, step
from agentrl_core.loss import Policy

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SimulatorTrust(BatchComponent):
    """Lets simulated steps count by the odds that they are real: weight *= clip(D / (1 - D), at_least, at_most).

    D is the step column `real_probability`; if it is not known, the step is real and weighs what it did.

    Args:
        at_least: smallest factor, at least 0.
        at_most: largest factor, above 0.

    Raises:
        RecipeError: an option is out of range, or the bounds are out of order.

    Example:
        >>> from agentrl_core.recipes.h2o import SimulatorTrust
        >>> SimulatorTrust().makes
        (step('weight'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (step("real_probability", model="discriminator"),)
    makes: ClassVar[tuple[Column, ...]] = (step("weight"),)

    at_least: float = option(0.1, at_least=0)
    at_most: float = option(2.0, above=0)

    def check_options(self) -> None:
        """Bounds are in order."""
        self.require(self.at_least <= self.at_most, "at_most", f"give a number of at least {self.at_least}")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "step")
        real = np.clip(rows.values("real_probability"), 0.0, 1.0 - 1e-9)
        odds = np.clip(real / (1.0 - real), self.at_least, self.at_most)
        return rows.scale(np.where(np.isfinite(odds), odds, 1.0))


H2O = Recipe(
    name="h2o",
    source="arXiv:2206.13464",
    frozen=("discriminator",),  # trained outside of the recipe, on steps of both kinds
    advantage=GroupRelative(),
    weight=SimulatorTrust(),
    loss=Policy(),
)
