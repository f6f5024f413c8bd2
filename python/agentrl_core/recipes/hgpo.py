"""HGPO: compare steps that share their last states, at several depths of history (arXiv:2602.22817).

GiGPO compares the steps of a group that were taken from the same state. Two steps that reached this state by different
paths are not equivalent. So HGPO compares at several depths of history, and gives deeper ones more weight. The paper's
K = 2 is three levels here: the state alone, and with one and two states before it. The advantage of the whole
trajectory, an option of the public code, is an additional link: `GroupRelative(level="step", singleton="raw",
add=True)`.

Equations:
    Read: the abstract, notes on the paper, and a copy of the authors' code; the paper's text was not read.

    - 3, context: `operators.keys.history`.
    - 4, group of level k: `HistoryRelative`; a step with fewer states before it has no group of that level.
    - 6, advantage of level k: `HistoryRelative(normalisation=Normalisation(ddof=0))`, after `Discounted(gamma=0.95)`.
    - 7, aggregate: `HistoryRelative(absent="zero")`, weights 1, 2, 3; levels with advantage 0 are skipped.
    - C1, aggregate of the code: an option, `HistoryRelative(absent="zero", state_weight=2.0)`, weights 2, 3, 4.
    - 8, objective: `Policy(kl=KL(0.01))`.

Differs:
    - Optimizer steps a batch: the source uses mini-batches of 256 steps, so their number depends on the lengths of the
      episodes; 1 here. `HGPO.replace(minibatches=8)` makes 8.

Needs: the model `reference`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import Discounted, Normalisation
from agentrl_core.component import BatchComponent, Column, Rows, column_name, option, step
from agentrl_core.loss import KL, Policy
from agentrl_core.operators.keys import history

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class HistoryRelative(BatchComponent):
    """Compare each step with steps that share its last states, at several depths of history.

        advantage = sum_k w_k A^(k) / sum_k w_k,  w_k = (k - 1 + state_weight)^level_power

    A^(k) compares the step with steps that have the same `anchor` keys and whose draws saw the same last k states,
    including the state acted on. The sum skips levels at which the step has no other step to compare with. Steps of
    draws without a score neither vote nor get a value.

    Args:
        column: step column to compare: by default the step's return, which `Discounted` computes.
        anchor: comma-joined key columns, equal for compared steps; without `group_id`, different tasks are compared.
        levels: largest number of last states that have to agree, at least 1.
        level_power: exponent of the weights; larger values give more weight to levels with more equal states.
        state_weight: weight of the state alone before the power, above 0; 2 in the public code.
        absent: skipped levels of a step: those at which it is alone (`mask`), or at which its advantage is 0 (`zero`,
            as in the notes and the public code).
        normalisation: how the values of a group are compared.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.hgpo import HistoryRelative
        >>> HistoryRelative().needs
        (step('score'), step('advantage'), step('group_id'), step('state_key'))
    """

    phase: ClassVar[str] = "advantage"
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"),)
    needs: ClassVar[tuple[Column, ...]] = (step("score"),)
    column: str = column_name("advantage", level="step")
    anchor: str = column_name("group_id,state_key", level="step")
    levels: int = option(3, at_least=1)
    level_power: float = 1.0
    state_weight: float = option(1.0, above=0)
    absent: Literal["mask", "zero"] = "mask"
    normalisation: Normalisation = Normalisation(ddof=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on steps."""
        rows = Rows(batch, "step")
        values, anchors = rows.values(self.column), rows.keys(self.anchor)
        total, weight = np.zeros(len(rows)), np.zeros(len(rows))
        # The anchor keys already include the group, so all rows get the same group id here.
        histories = history(anchors, rows.draws, np.zeros(len(rows), np.uint32), self.levels)
        for level, (groups, known) in enumerate(histories, start=1):
            part = self.normalisation.compare(values, groups, valid=rows.valid & known)
            company = group.statistics(values, groups, valid=rows.valid & known).count[groups] > 1
            present = known & (company if self.absent == "mask" else part != 0.0)
            share = np.where(present, (level - 1.0 + self.state_weight) ** self.level_power, 0.0)
            total, weight = total + share * part, weight + share
        return rows.write(advantage=np.divide(total, weight, out=np.zeros(len(rows)), where=weight > 0.0))


HGPO = Recipe(
    name="hgpo",
    source="arXiv:2602.22817",
    advantage=(Discounted(gamma=0.95), HistoryRelative(absent="zero")),
    loss=Policy(kl=KL(0.01)),
)
