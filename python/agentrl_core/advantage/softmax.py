"""Advantages that are weights of draws, softmax within the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed, sums
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class SoftmaxScaled(BatchComponent):
    """advantage = A * softmax((A + strength * H) / temperature) within the group: good and uncertain draws count more.

    A is the advantage of draws that is there, H the mean entropy of a draw's trained tokens. Source: EGSW,
    arXiv:2503.22456, which does not give the defaults.

    Args:
        strength: of the entropy.
        temperature: above 0; the smaller, the more one draw takes all.
        rescale_mean_one: multiply by the number of the group's draws, so that the weights have mean 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import SoftmaxScaled
        >>> SoftmaxScaled().needs
        (('draw', 'advantage'), ('draw', 'group_id'), ('token', 'entropy'))
    """

    phase: ClassVar[str] = "advantage"

    strength: float = 0.1
    temperature: float = 1.0
    rescale_mean_one: bool = False

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.temperature > 0.0, "temperature", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The advantage so far, and entropies."""
        return (*needed("draw", "advantage", "group_id"), ("token", "entropy"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `advantage` on draws."""
        rows = Rows(batch, "draw")
        groups, valid = rows.keys("group_id"), rows.valid
        advantage, entropy = rows.values("advantage"), _mean_entropy(rows)
        made = group.softmax(advantage + self.strength * entropy, groups, temperature=self.temperature, valid=valid)
        if self.rescale_mean_one:
            made = group.mean_one(made, groups, valid=valid)
        return rows.write(advantage=np.where(valid, made * advantage, 0.0))


def _mean_entropy(rows: Rows) -> NDArray[np.float64]:
    """The mean entropy of the trained tokens of each draw; 0 without any."""
    tokens = Rows(rows.batch, "token")
    values = np.where(tokens.flags("trainable"), tokens.values("entropy"), 0.0)
    return sums(values, tokens.draws, len(rows)) / np.maximum(rows.trained, 1.0)
