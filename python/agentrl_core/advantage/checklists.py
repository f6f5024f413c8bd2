"""Advantages of steps by the checklist items they could earn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group, keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ChecklistRelative(BatchComponent):
    """advantage = sum_c w_c (r_c - b_c) / sum_c w_c of each step, over the items that are eligible there.

    r_c is 1 where this or a later step of the turn satisfies the item (`item_reward.c`), b_c the share of the group's
    draws that satisfied it in that turn. An item that fewer than `min_count` draws of the group reached is left out; a
    step without any item left gets 0. Draws without a score neither vote nor get a value. Reads what `reward.Checklist`
    makes.
    Source: CM2, arXiv:2602.12268, at step level; its turn level is `GroupRelative(column="turn_reward", level="step",
    group_by="group_id,turn", unit="trajectory", scale="none", min_count=5)`.

    Args:
        items: how many items a turn can have, as in `reward.Checklist`.
        min_count: at least 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import ChecklistRelative
        >>> ChecklistRelative(items=1).makes
        (('step', 'advantage'),)
    """

    phase: ClassVar[str] = "advantage"

    items: int
    min_count: int = 5

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(1 <= self.items <= 62, "items", "give a number from 1 to 62")
        self.require(self.min_count >= 1, "min_count", "give a number of at least 1")

    @property
    def needs(self) -> tuple[Column, ...]:
        """What items were worth, and where."""
        kinds = ("satisfied", "item_weight", "item_reward", "item_eligible")
        names = [f"{name}.{item}" for item in range(self.items) for name in kinds]
        return needed("step", "score", "group_id", "turn", *names)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each step."""
        return (("step", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on steps."""
        rows = Rows(batch, "step")
        turns = keys.composite(rows.draws, rows.keys("turn"))
        same = rows.keys("group_id,turn")
        total, weight = np.zeros(len(rows)), np.zeros(len(rows))
        for item in range(self.items):
            satisfied = rows.values(f"satisfied.{item}")
            valid = rows.valid & np.isfinite(satisfied)
            reached = group.statistics(satisfied, turns, valid=valid).most[turns]
            share = group.statistics(reached, same, unit_ids=turns, valid=valid)
            counts = valid & rows.flags(f"item_eligible.{item}") & (share.count[same] >= self.min_count)
            own = np.where(counts, rows.values(f"item_weight.{item}"), 0.0)
            gain = rows.values(f"item_reward.{item}") - np.nan_to_num(share.mean[same], nan=0.0)
            total, weight = total + own * gain, weight + own
        return rows.write(advantage=np.divide(total, weight, out=np.zeros(len(rows)), where=weight > 0.0))
