"""EGSW: weight advantages by a softmax of advantage and entropy within the group (arXiv:2503.22456).

The paper gives neither the coefficient of the entropy nor the temperature; the defaults here are a proposal.

Equations:
    Read: the abstract and notes of others; neither the paper nor its code was read.

    - N1, raw weight: `SoftmaxScaled`; `level="token"` is the step-wise setting.
    - N2, normalised weight: the softmax over the group, or over the tokens at the same position of its answers.
    - N3, policy gradient: the weight multiplies the advantage, without a gradient.
    - N4, advantage: `GroupRelative`.

Differs:
    - Coefficient and temperature: not known; 0.1 and 1 here.
    - Step-wise weights: no source states how answers of unequal lengths are compared. Here the weights at a position
      sum to 1 over the answers that have a token there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group, keys
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, sum_rows, token
from agentrl_core.loss import Policy

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SoftmaxScaled(BatchComponent):
    """Increase the weight of draws with a high advantage and a high entropy within their group.

        advantage = A * softmax((A + coefficient * H) / temperature) within the group

    A is the existing advantage of the draw, H the mean entropy of its trained tokens. At level `token`, H is the
    entropy of the token, and the softmax is over the tokens at the same position of the group's answers.

    Args:
        level: `draw`, or `token`: one weight per generated token.
        coefficient: factor of the entropy.
        temperature: above 0; smaller values concentrate the weight on one draw.
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

    level: Literal["draw", "token"] = "draw"
    coefficient: float = 0.1
    temperature: float = option(1.0, above=0)
    rescale_mean_one: bool = False

    def own_makes(self) -> tuple[Column, ...]:
        """Return the column that the component writes: the advantage of each row of the level."""
        return (Column(self.level, "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the weighted column `advantage` on the rows of the level."""
        rows = Rows(batch, self.level)
        valid, advantage = rows.valid, rows.values("advantage")
        groups = keys.dense(Rows(batch, "draw").keys("group_id")[rows.draws])
        if self.level == "draw":
            entropy = _mean_entropy(rows)
        else:
            entropy = np.where(valid, rows.values("entropy"), 0.0)
            groups = keys.dense(groups.astype(np.int64) * (len(rows) + 1) + _places(rows))
        shares = group.softmax(
            advantage + self.coefficient * entropy, groups, temperature=self.temperature, valid=valid
        )
        if self.rescale_mean_one:
            shares = group.mean_one(shares, groups, valid=valid)
        return rows.write(advantage=np.where(valid, shares * advantage, 0.0))


def _places(rows: Rows) -> NDArray[np.int64]:
    """Return the position of each token among the trained tokens of its draw, from 1; 0 before the first one."""
    trained = np.cumsum(rows.flags("trainable"))
    begin = np.flatnonzero(np.diff(rows.draws, prepend=-1))
    before = np.append(0, trained)[begin]
    places: NDArray[np.int64] = trained - np.repeat(before, np.diff(np.append(begin, len(rows))))
    return places


def _mean_entropy(rows: Rows) -> NDArray[np.float64]:
    """Return the mean entropy of the trained tokens of each draw; 0 if it has none."""
    tokens = Rows(rows.batch, "token")
    values = np.where(tokens.flags("trainable"), tokens.values("entropy"), 0.0)
    mean: NDArray[np.float64] = sum_rows(values, tokens.draws, len(rows)) / np.maximum(rows.trained, 1.0)
    return mean


EGSW = Recipe(name="egsw", source="arXiv:2503.22456", advantage=(GroupRelative(), SoftmaxScaled()), loss=Policy())
