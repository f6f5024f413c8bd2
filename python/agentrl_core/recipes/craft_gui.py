"""CRAFT-GUI: train interface tasks from easy to hard, with rewards for format, action and argument (arXiv:2508.11360).

Stage s rolls out tasks of bucket s or an earlier one. A task's bucket depends on the length of its reference: at most 3
steps, 4 to 8, or more than 8 (column `reference_steps` of the pool). A stage ends when more than 0.8 of the rollouts of
its own bucket succeed. In later stages, 0.15 of the groups are of earlier buckets, against forgetting. The reward is:

    0.1 format + 0.4 [right type of action] + 0.5 [right argument], or 0.5 judge for an answer in text

The environment reports these terms as components of the reward. Without a judge, the sum of the remaining terms is
divided by the sum of their weights. Then GRPO.

Equations:
    Read: the abstract, and notes by others, which propose buckets, weights and the rule that ends a stage. The paper's
    text was not read, and there is no public code.

    - N1, stage: `Curriculum`.
    - N2, reward: `FineGrained`.
    - N3, no judge: `FineGrained` divides by the weights of the known components.
    - N4, advantage: `GroupRelative`, std of n - 1.
    - N5, switch: `Curriculum(above=0.8)`; the number of updates of a stage has no limit.

Differs:
    - Clip ranges, group size, optimizer steps: not given; GRPO's here.

Needs: the components `reward.format`, `reward.action`, `reward.argument` and `reward.judge` of the reward, each missing
if it does not apply; the column `reference_steps` of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import Policy
from agentrl_core.select import ComposedSelector, Curriculum

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class FineGrained(BatchComponent):
    """Score a draw with the weighted mean of the known components of its reward.

    Format, action and argument have the weights 0.1, 0.4 and 0.5; for a judged answer, format, action and judge have
    the weights 0.1, 0.4 and 0.5. A draw without any component has no score.

    Args:
        format: weight of `reward.format`, which is 1 if the step is well-formed.
        action: weight of `reward.action`, the type of the action.
        argument: weight of `reward.argument`.
        judge: weight of `reward.judge`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.craft_gui import FineGrained
        >>> FineGrained().makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = tuple(
        draw(f"reward.{name}") for name in ("format", "action", "argument", "judge")
    )
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    format: float = option(0.1, above=0)
    action: float = option(0.4, above=0)
    argument: float = option(0.5, above=0)
    judge: float = option(0.5, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        parts = np.stack([rows.values(column.name) for column in self.needs])
        weights = np.array([[self.format], [self.action], [self.argument], [self.judge]]) * np.isfinite(parts)
        total = weights.sum(axis=0)
        mean = (weights * np.nan_to_num(parts)).sum(axis=0) / np.maximum(total, np.finfo(np.float64).tiny)
        return rows.write(score=np.where(total > 0.0, mean, np.nan))


CRAFT_GUI = Recipe(
    name="craft_gui",
    source="arXiv:2508.11360",
    select=ComposedSelector(stage=Curriculum("reference_steps", (3, 8), above=0.8, earlier=0.15)),
    reward=FineGrained(),
    advantage=GroupRelative(),
    loss=Policy(),
)
