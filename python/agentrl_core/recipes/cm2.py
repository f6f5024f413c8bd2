"""CM2: open-ended quality as the items of a checklist (arXiv:2602.12268).

A judge says after each step which items of its turn are satisfied; `reward.Checklist` makes a score of it. The paper's
choice is the level of whole trajectories, A = R - mean of the group: denser credit learns faster at first and
collapses earlier. Its other levels are, for steps, `ChecklistRelative(items=8)`, and for turns
`GroupRelative(column="turn_reward", level="step", group_by="group_id,turn", voter="trajectory", scale="none",
votes_at_least=5)`. Of the mismatch of engine and trainer, recomputed over sampled, what is above 2 is cut, and draws
with a token below 1e-4 are left out; the clipped ratio is to the recomputed log-probs. Draws whose judge failed
neither vote nor train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, option, step
from agentrl_core.loss import KL, Policy
from agentrl_core.operators import group, keys
from agentrl_core.recipe import Recipe
from agentrl_core.reward import Checklist
from agentrl_core.weight import ImportanceWeight

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ChecklistRelative(BatchComponent):
    """Credits each step with the items of a checklist that it could earn there.

        advantage = sum_c w_c (r_c - b_c) / sum_c w_c, over the items c that are eligible at the step

    r_c is 1 where this or a later step of the turn satisfies the item (`item_reward.c`), b_c the share of the group's
    draws that satisfied it in that turn. An item that fewer than `members_at_least` draws of the group reached is left
    out; a step without any item left gets 0. Draws without a score neither vote nor get a value. Reads what
    `reward.Checklist` makes.

    Args:
        items: how many items a turn can have, as in `reward.Checklist`.
        members_at_least: at least 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.cm2 import ChecklistRelative
        >>> ChecklistRelative(items=1).makes
        (step('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("score"), step("group_id"), step("turn"))
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"),)

    items: int = option(at_least=1, at_most=62)
    members_at_least: int = option(5, at_least=1)

    def own_needs(self) -> Iterable[Column]:
        """What items were worth, and where."""
        kinds = ("satisfied", "item_weight", "item_reward", "item_eligible")
        return (step(f"{name}.{item}") for item in range(self.items) for name in kinds)

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
            share = group.statistics(reached, same, voter_ids=turns, valid=valid)
            counts = valid & rows.flags(f"item_eligible.{item}") & (share.count[same] >= self.members_at_least)
            own = np.where(counts, rows.values(f"item_weight.{item}"), 0.0)
            gain = rows.values(f"item_reward.{item}") - np.nan_to_num(share.mean[same], nan=0.0)
            total, weight = total + own * gain, weight + own
        return rows.write(advantage=np.divide(total, weight, out=np.zeros(len(rows)), where=weight > 0.0))


CM2 = Recipe(
    name="cm2",
    source="arXiv:2602.12268",
    reward=Checklist(items=8),
    advantage=GroupRelative(scale="none"),
    weight=(ImportanceWeight(), ImportanceWeight(kind="veto", at_least=1e-4, at_most=None)),
    loss=Policy(kl=KL(0.001)),
    old_logprob="recomputed",
)
