"""MindOmni (RGPO): one trajectory reasons in text and then makes an image, each with its own KL (arXiv:2505.13031).

    L = mean over tokens of [ - min(r A, clip(r, 0.8, 1.2) A) + b_t k3(p, p_ref) ],   b = 0.01 of text, 0.06 of an image
    R = similarity of image and prompt + format,   A = (R - mean) / std

The paper's KL terms are means over the tokens of each kind; here a token of either counts the same. eps is not given.

Needs: the fact `image` of steps (1 where the step made the image), the reward's component `format` (the reward itself
is the similarity), and the model reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, option, token
from agentrl_core.loss import KL, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import Fuse, Outcome

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class KLOfMarked(BatchComponent):
    """Holds tokens of one kind nearer to the reference than those of another.

    kl_weight = `marked` where the column is other than 0, `plain` elsewhere; it multiplies the penalty of the loss.

    Args:
        column: step column that marks.
        plain: at least 0.
        marked: at least 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.mind_omni import KLOfMarked
        >>> KLOfMarked(column="image").makes
        (token('kl_weight'),)
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (token("kl_weight"),)

    column: str = column_name(level="step")
    plain: float = option(0.01, at_least=0)
    marked: float = option(0.06, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `kl_weight` on tokens."""
        rows = Rows(batch, "token")
        return rows.write(kl_weight=np.where(rows.flags(self.column), self.marked, self.plain))


MIND_OMNI = Recipe(
    name="mind_omni",
    source="arXiv:2505.13031",
    reward=(Outcome(), Fuse(column="reward.format")),
    advantage=GroupRelative(),
    weight=KLOfMarked(column="image"),
    loss=Policy(kl=KL(1.0)),
)
