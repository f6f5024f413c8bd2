"""SSL (sweet spot learning): reward quality in a few ordered tiers, neither binary nor continuous (arXiv:2601.22491).

    R = ceil(4 x) / 4 if the answer is valid, else 0,   x = exp(-(dx^2 + dy^2) / 2),   A = (R - mean) / std

dx and dy are the distances from the target, in units of its size. For tasks whose quality x is the share of matched
cells or items, use `reward.OutcomeScore()` in place of `reward.GaussianProximity`. Four tiers were best in the paper;
here they are evenly spaced.

Equations:
    Read: notes of others only; the paper's text was not read.

    - S1, reward: an option, after `RoundUpReward` in place of the gate: `CombineReward(column="score",
      coefficient=alpha - 1)` and `CombineReward(column="reward.correct")`.
    - S2, tier: `RoundUpReward(count=4)`.
    - S3, spatial quality: `GaussianProximity(column="dx,dy")`.
    - S4, structured quality: `OutcomeScore`, with an environment whose reward is the share.
    - S5, other form of the reward: the last `CombineReward`, a gate.
    - S6, group advantage: `GroupRelative`.

Differs:
    - Form of the reward: C + alpha S in one note, valid S in the other; the second one here, since no source gives
      alpha.
    - Worth of tiers: values that grow progressively in one note; evenly spaced here, as in the other note.

Needs: the facts `dx` and `dy` of trajectories, and the reward's component `valid`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Policy
from agentrl_core.reward import CombineReward, GaussianProximity

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class RoundUpReward(BatchComponent):
    """Round a quality x in [0, 1] up to the next tier: score = ceil(count * x) / count; 0 stays 0.

    To gate invalid answers, add a `CombineReward(kind="require")` before or after it. Source: SSL (sweet spot
    learning), arXiv:2601.22491.

    Args:
        count: number of tiers.
        column: draw column of the quality; a draw with unknown quality has no score.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: a quality is not in [0, 1].

    Example:
        >>> from agentrl_core.recipes.ssl import RoundUpReward
        >>> RoundUpReward(count=5).needs
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    count: int = option(4, at_least=1)
    column: str = column_name("score", level="draw")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        qualities = rows.values(self.column)
        known = ~np.isnan(qualities)
        outside = np.flatnonzero(known & ((qualities < 0.0) | (qualities > 1.0)))
        if len(outside):
            raise InvalidInputError(
                f"column {self.column!r} of draw {outside[0]} is {qualities[outside[0]]}; give a quality from 0 to 1"
            )
        return rows.write(score=np.ceil(self.count * qualities) / self.count)


SSL = Recipe(
    name="ssl",
    source="arXiv:2601.22491",
    reward=(GaussianProximity(column="dx,dy"), RoundUpReward(), CombineReward(column="reward.valid", kind="require")),
    advantage=GroupRelative(),
    loss=Policy(),
)
