"""BranchGRPO: trees that split at fixed depths, and credit at each depth (arXiv:2509.06040).

Every branch splits before turns 0, 3, 6 and 9, so a tree has 16 leaves (`rollout.FixedDepthBranching`); of those that
were one before the last split the best half is trained. A node is worth the mean of the leaves below it and is compared
with the nodes of its tree at its depth, clipped to ±5. The gradient leaves out the depths of a window that slides to
shallower ones: it never changes values or statistics. The paper's steps are those of a denoiser; here they are turns,
and its clip of 1e-3 is 0.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.advantage import Normalisation, TreeRelative
from agentrl_core.component import BatchComponent, Column, Rows, Schedule, option, token
from agentrl_core.loss import Clip, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import FixedDepthBranching

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class DepthWindow(BatchComponent):
    """Leaves the turns of some depths out of the loss: `width` of them from number `first` on, counted from 0.

    A `Schedule` for `first` makes it slide.

    Args:
        first: the first turn that is left out.
        width: how many are; 0: none.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core import Schedule
        >>> from agentrl_core.recipes.branch_grpo import DepthWindow
        >>> [DepthWindow(first=Schedule(15, 9, iterations=180), width=4).at(iteration).first for iteration in (0, 60)]
        [15, 13]
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (token("keep"),)

    first: int = option(15, at_least=0)
    width: int = option(4, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on tokens."""
        offsets = batch.offsets("step")
        depth = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        inside = (depth >= self.first) & (depth < self.first + self.width)
        return Rows(batch, "token").keep(~np.repeat(inside, np.diff(batch.offsets("token"))))


BRANCH_GRPO = Recipe(
    name="branch_grpo",
    source="arXiv:2509.06040",
    rollout=FixedDepthBranching(splits=4, every=3, keep="best", ratio=0.5),
    advantage=TreeRelative(normalisation=Normalisation(eps=1e-8, scale_above=1e-6, at_most=5.0)),
    weight=DepthWindow(first=Schedule(15, 9, iterations=180)),
    loss=Policy(clip=Clip(0.2, 0.2)),
)
