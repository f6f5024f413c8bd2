"""CM2: open-ended quality as the items of a checklist (arXiv:2602.12268).

A judge reports after each step which items of its turn are satisfied; `Checklist` makes a score of it. The paper's
choice is the level of whole trajectories, A = R - mean of the group: denser credit learns faster at first and collapses
earlier. Its other levels are, for steps, `ChecklistRelative(items=8)`, and for turns
`GroupRelative(column="turn_reward", level="step", group_by="group_id,turn", voter="trajectory", scale="none")`; the
public code needs five rollouts in a turn, `votes_at_least=5` and `members_at_least=5`. Of the mismatch of engine and
trainer, recomputed over sampled, what is above 2 is cut, and draws with a token below 1e-4 are left out; the clipped
ratio is to the recomputed log-probs. Draws whose judge failed neither vote nor train.

Equations:
    Read: sections 3.3 and 3.4 and the appendix of the paper, and the public code.

    - 2, reward of an item: `Checklist`.
    - 3, backfilled reward: `Checklist`, the columns `item_reward` and `item_eligible`.
    - 4, reward of a rollout: `Checklist`, divided by the turns of the rollout.
    - 5, trajectory level: `GroupRelative(scale="none")`.
    - 6, reward of a turn: `Checklist`, the column `turn_reward`.
    - 7, turn level: an option, `GroupRelative(column="turn_reward", level="step", ...)`.
    - 8, 9 and 10, baseline, item at a step and step level: an option, `ChecklistRelative`.
    - P1, strictness: left out: the environment ends a rollout whose strict items are missed.
    - C1, turn level in the code: an option, `votes_at_least=5`; a judge that failed takes the score.
    - C2, rollout reward in the code: left out: divided by the turns of the checklist, so that an early end is worth
      less.
    - C3, step level in the code: its baseline is an option, `ChecklistRelative(members_at_least=5)`; left out: without
      the division by weights, which the script turns off.
    - C4, loss: `Policy(kl=KL(0.001))`, mean over tokens; `ImportanceWeight`, cut at 2.

Differs:
    - KL: 0.001 in the paper and here, 0.0001 in the script.
    - Optimizer steps a batch: of mini-batches of 128, the batch is not stated; 1 here.
    - Clip range: not stated; 0.2 here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group, keys
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, step
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import KL, Policy
from agentrl_core.reward.process import checklist
from agentrl_core.weight import ImportanceWeight

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core import Batch


@dataclass(frozen=True)
class Checklist(BatchComponent):
    """Scores a trajectory by the items of checklists that its steps earn: (1 / turns) * sum of w_c over earned items c.

    The step columns have a judge's verdicts: `satisfied.0`, `satisfied.1`, ... whether the item holds after the step
    (NaN: the turn has no such item), `item_weight.c` its weight, `item_needs.c` the items it depends on, as the sum of
    2^d, and `turn`, whose steps stand together. An item is eligible at a step if what it depends on was satisfied
    before and it was not; the first step after which it is satisfied earns it, if it was eligible. A draw with a step
    whose column `judge_failed` is 1 has no score. Besides `score`, it makes `turn_reward`, what the step's turn earned,
    and for each item `item_reward.c` (1 if it is eligible and this or a later step of the turn satisfies it) and
    `item_eligible.c`, for `ChecklistRelative`. Source: CM2, arXiv:2602.12268.

    Args:
        items: how many items a turn can have.
        delay: an item counts delay ** (steps of its turn that it was eligible before).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.cm2 import Checklist
        >>> Checklist(items=1).makes
        (draw('score'), step('turn_reward'), step('item_reward.0'), step('item_eligible.0'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (step("turn"), step("judge_failed"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"), step("turn_reward"))

    items: int = option(at_least=1, at_most=62)
    delay: float = option(1.0, at_least=0, at_most=1)

    def own_needs(self) -> Iterable[Column]:
        """Verdicts of the judge, and the items."""
        for item in range(self.items):
            yield from (step(f"{name}.{item}") for name in ("satisfied", "item_weight", "item_needs"))

    def own_makes(self) -> Iterable[Column]:
        """Reward of each step for each item."""
        for item in range(self.items):
            yield from (step(f"{name}.{item}") for name in ("item_reward", "item_eligible"))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns of `makes`."""
        rows, draws = Rows(batch, "step"), Rows(batch, "draw")
        turns = keys.composite(rows.draws, rows.keys("turn"))
        starts = np.flatnonzero(np.append(True, turns[1:] != turns[:-1])[: len(turns)])
        if len(starts) != len(np.unique(turns)):
            raise InvalidInputError(
                "column 'turn' comes back to an earlier turn of the draw; number its turns in order"
            )
        satisfied, weight = self._matrix(rows, "satisfied"), self._matrix(rows, "item_weight")
        known = np.isfinite(satisfied)
        needs = np.nan_to_num(self._matrix(rows, "item_needs"), nan=0.0).astype(np.int64)[starts]
        credit = checklist(
            known & (satisfied == 1.0),
            ((needs[:, :, None] >> np.arange(self.items)) & 1).astype(np.bool_),
            np.append(starts, len(rows)),
            delay=self.delay,
        )
        eligible = credit.eligible & known
        of_step = np.where(known, credit.earned * np.nan_to_num(weight, nan=0.0), 0.0).sum(axis=1)
        of_turn = group.sums(of_step, turns)
        # Turns follow each other, so their numbers stand in order of draws.
        draw_of_turn = rows.draws[starts]
        total = np.bincount(draw_of_turn, weights=of_turn, minlength=len(draws))
        count = np.bincount(draw_of_turn, minlength=len(draws))
        failed = np.bincount(rows.draws, weights=rows.flags("judge_failed"), minlength=len(draws)) > 0.0
        items = {f"item_reward.{item}": credit.backfilled[:, item] for item in range(self.items)}
        items |= {f"item_eligible.{item}": eligible[:, item] for item in range(self.items)}
        batch = rows.write(turn_reward=of_turn[turns], **items)
        return Rows(batch, "draw").write(score=np.where(failed, np.nan, total / np.maximum(count, 1)))

    def _matrix(self, rows: Rows, name: str) -> NDArray[np.float64]:
        return np.stack([rows.values(f"{name}.{item}") for item in range(self.items)], axis=1)


@dataclass(frozen=True)
class ChecklistRelative(BatchComponent):
    """Credits each step with the items of a checklist that it could earn there.

        advantage = sum_c w_c (r_c - b_c) / sum_c w_c, over the items c that are eligible at the step

    r_c is 1 if this or a later step of the turn satisfies the item (`item_reward.c`), b_c the share of the group's
    draws that satisfied it in that turn; a draw that did not reach it did not satisfy it. A step without any item gets
    0. Draws without a score neither vote nor get a value. Reads what `Checklist` makes.

    Args:
        items: how many items a turn can have, as in `Checklist`.
        members_at_least: at least 1: b_c is the share of the draws that reached the item, and an item that fewer
            reached is left out; None: the share of all draws of the group.

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
    members_at_least: int | None = option(None, at_least=1)

    def own_needs(self) -> Iterable[Column]:
        """Rewards of items, and their steps."""
        kinds = ("satisfied", "item_weight", "item_reward", "item_eligible")
        return (step(f"{name}.{item}") for item in range(self.items) for name in kinds)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on steps."""
        rows = Rows(batch, "step")
        turns = keys.composite(rows.draws, rows.keys("turn"))
        same, groups = rows.keys("group_id,turn"), rows.keys("group_id")
        everyone = group.statistics(rows.values("score"), groups, voter_ids=rows.draws, valid=rows.valid).count[groups]
        total, weight = np.zeros(len(rows)), np.zeros(len(rows))
        for item in range(self.items):
            satisfied = rows.values(f"satisfied.{item}")
            valid = rows.valid & np.isfinite(satisfied)
            reached = group.statistics(satisfied, turns, valid=valid).most[turns]
            share = group.statistics(reached, same, voter_ids=turns, valid=valid)
            baseline, members = np.nan_to_num(share.mean[same], nan=0.0), share.count[same]
            counts = valid & rows.flags(f"item_eligible.{item}")
            if self.members_at_least is None:
                baseline = baseline * members / np.maximum(everyone, 1.0)
            else:
                counts &= members >= self.members_at_least
            own = np.where(counts, rows.values(f"item_weight.{item}"), 0.0)
            gain = rows.values(f"item_reward.{item}") - baseline
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
