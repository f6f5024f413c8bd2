"""GUI-G1: train grounding without the biases of answer length and of easy, large boxes (arXiv:2505.15810).

    R = hit + 0.25 overlap + 0.125 edges,   A = R - mean R
    L = mean_i (w / 64) sum_t - min(r A, clip(r, 0.8, 1.2) A)

`hit` is 1 if the centre of the predicted box is in the target box. `overlap` is the intersection over union of both
boxes. `edges` is the harmonic mean of 1 - |distance| / image side over the four edges, which bounds the size of the
box. w, the weight of a task, is larger for smaller boxes. Its formula is not public; 1 / sqrt(relative area) between
1/2 and 2, with mean 1, is a proposal.

Equations:
    Read: the authors' code, and the abstract.

    - C1, hit reward: `BoxReward`.
    - C2, overlap reward: `BoxReward`.
    - C3, box reward: `BoxReward`.
    - C4, reward: `BoxReward`; a draw without a box has reward 0.
    - C5, advantage: `GroupRelative(scale="none")`.
    - C6, loss: `ColumnScaled(column="task_weight")` and `Policy(aggregate="constant", constant=64.0)`.

Differs:
    - Clip range: 0.2 in the code's trainer; it has no effect in the single step of a batch.
    - Edge: if an edge is more than an image side away, the mean is negative or arbitrarily large in the code; it is 0
      here.
    - Template: fast thinking, answers without reasoning, is a prompt; the environment gives it here.

Needs: the facts `box_x1`, `box_y1`, `box_x2`, `box_y2` of the answer (missing if it cannot be parsed), the same facts
of the target (`target_x1`, ...), `image_width`, `image_height` and `task_weight`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import Policy
from agentrl_core.weight import ColumnScaled

if TYPE_CHECKING:
    from agentrl_core import Batch

_EDGES = ("x1", "y1", "x2", "y2")


@dataclass(frozen=True)
class BoxReward(BatchComponent):
    """Score a predicted box by its centre, its overlap with the target box, and the positions of its edges.

    The module docstring has the formula. An overlap of at most one pixel in width or height counts as 0, as in the
    public code, and `edges` is 0 if an edge is a whole image side away. A draw with an unknown box scores 0. A draw
    with an unknown reward, target or image size has no score.

    Args:
        overlap: coefficient of the overlap.
        edges: coefficient of the edges.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.gui_g1 import BoxReward
        >>> BoxReward().makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("reward"),
        *(draw(f"{name}_{edge}") for name in ("box", "target") for edge in _EDGES),
        draw("image_width"),
        draw("image_height"),
    )
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    overlap: float = option(0.25, at_least=0)
    edges: float = option(0.125, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        box, target = (
            np.stack([rows.values(f"{name}_{edge}") for edge in _EDGES]).reshape(2, 2, -1) for name in ("box", "target")
        )  # [corner, axis, draw]
        sides = np.stack([rows.values("image_width"), rows.values("image_height")])
        parsed = np.isfinite(box).all((0, 1))
        known = rows.is_known("reward") & np.isfinite(target).all((0, 1)) & (sides > 0.0).all(0)
        centre = box.mean(0)
        hit = ((target[0] <= centre) & (centre <= target[1])).all(0)
        shared = np.minimum(box[1], target[1]) - np.maximum(box[0], target[0])
        inside = np.where((shared > 1.0).all(0), shared.prod(0), 0.0)
        union = (box[1] - box[0]).prod(0) + (target[1] - target[0]).prod(0) - inside
        closeness = (1.0 - np.abs(box - target) / np.where(sides > 0.0, sides, 1.0)).reshape(4, -1)
        apart = (closeness <= 0.0).any(0)
        edges = np.where(apart, 0.0, 4.0 / (1.0 / np.where(apart, 1.0, closeness)).sum(0))
        score = hit + self.overlap * inside / np.where(union > 0.0, union, 1.0) + self.edges * edges
        return rows.write(score=np.where(known, np.where(parsed, score, 0.0), np.nan))


GUI_G1 = Recipe(
    name="gui_g1",
    source="arXiv:2505.15810",
    reward=BoxReward(overlap=0.25, edges=0.125),
    advantage=GroupRelative(scale="none"),
    weight=ColumnScaled(column="task_weight"),
    loss=Policy(aggregate="constant", constant=64.0),
)
