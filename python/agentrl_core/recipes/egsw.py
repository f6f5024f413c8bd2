"""EGSW: advantages weighted by a softmax of advantage and entropy within the group (arXiv:2503.22456).

The paper gives neither the coefficient of the entropy nor the temperature; the defaults here are a proposal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, sum_rows, token
from agentrl_core.loss import Policy

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SoftmaxScaled(BatchComponent):
    """Makes good and uncertain draws of a group count more than the others.

        advantage = A * softmax((A + coefficient * H) / temperature) within the group

    A is the advantage of draws that is there, H the mean entropy of a draw's trained tokens.

    Args:
        coefficient: of the entropy.
        temperature: above 0; the smaller, the more one draw takes all.
        rescale_mean_one: multiply by the number of the group's draws, so that the weights have mean 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.egsw import SoftmaxScaled
        >>> SoftmaxScaled().needs
        (draw('advantage'), draw('group_id'), token('entropy'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("group_id"), token("entropy"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    coefficient: float = 0.1
    temperature: float = option(1.0, above=0)
    rescale_mean_one: bool = False

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `advantage` on draws."""
        rows = Rows(batch, "draw")
        groups, valid = rows.keys("group_id"), rows.valid
        advantage, entropy = rows.values("advantage"), _mean_entropy(rows)
        shares = group.softmax(
            advantage + self.coefficient * entropy, groups, temperature=self.temperature, valid=valid
        )
        if self.rescale_mean_one:
            shares = group.mean_one(shares, groups, valid=valid)
        return rows.write(advantage=np.where(valid, shares * advantage, 0.0))


def _mean_entropy(rows: Rows) -> NDArray[np.float64]:
    """The mean entropy of the trained tokens of each draw; 0 without any."""
    tokens = Rows(rows.batch, "token")
    values = np.where(tokens.flags("trainable"), tokens.values("entropy"), 0.0)
    mean: NDArray[np.float64] = sum_rows(values, tokens.draws, len(rows)) / np.maximum(rows.trained, 1.0)
    return mean


EGSW = Recipe(name="egsw", source="arXiv:2503.22456", advantage=(GroupRelative(), SoftmaxScaled()), loss=Policy())
