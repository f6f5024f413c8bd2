"""AC-Flow: an actor-critic whose advantages are bounded and whose critic learns first (arXiv:2510.18072).

    A_t = clip(sum of the rewards from t on - V_t, -3, 3),   L_critic = mean over steps of 1/2 (V - R)^2

The policy is not trained in the first 50 iterations. The paper fine-tunes flow models with feedback in the middle of a
generation; the mechanisms hold for steps of agents. It gives neither bound nor warm-up; these are proposals. Its
critic-weighted form multiplies by exp(A): `weight.ColumnScaled(column="advantage", level="step", kind="exponential",
at_most=20.0)`.

Needs: rewards of steps; the critic, as step column `value`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import BatchComponent, Column, Rows, option, step
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.schedule import FreezeModel

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class BoundedAdvantage(BatchComponent):
    """Keeps the advantages of steps within +- `at_most`, so that no single step decides an update.

    Args:
        at_most: above 0.

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
        """Return `batch` with another column `advantage` on steps."""
        rows = Rows(batch, "step")
        return rows.write(advantage=np.clip(rows.values("advantage"), -self.at_most, self.at_most))


AC_FLOW = Recipe(
    name="ac_flow",
    source="arXiv:2510.18072",
    advantage=(Gae(level="step", column="reward", outcome=""), BoundedAdvantage()),
    loss=(Train(Value("step_mean", level="step"), model="critic"), Policy()),
    hooks=FreezeModel("policy", until=51),
)
