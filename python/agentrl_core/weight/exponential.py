"""Factors that grow with the advantage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, level_of

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class AdvantageExponential(BatchComponent):
    """weight *= min(exp(A / temperature), most): better than expected counts more, and worse less.

    Rows of draws without a score have factor 1. Sources: RED-Weight, arXiv:2509.24203; critic-weighted updates of
    AC-Flow, arXiv:2510.18072.

    Args:
        temperature: above 0; the larger, the more equal the weights.
        most: the largest factor, above 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.weight import AdvantageExponential
        >>> AdvantageExponential().makes
        (('token', 'weight'),)
    """

    phase: ClassVar[str] = "weight"

    temperature: float = 1.0
    most: float = 20.0

    def check_options(self) -> None:
        """Ranges as documented."""
        for option in ("temperature", "most"):
            self.require(getattr(self, option) > 0.0, option, "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The advantage, of whatever level."""
        return (("token", "advantage"),)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight, at the level of the advantage."""
        return (("token", "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, level_of(batch, "advantage", "draw"))
        # The bound goes before the exponential, which a large advantage would overflow.
        power = np.minimum(rows.values("advantage") / self.temperature, np.log(self.most))
        return rows.scale(np.where(rows.valid, np.exp(power), 1.0))
