"""CM2: score open-ended quality by the items of a checklist (arXiv:2602.12268).

A judge reports after each step which items of the turn are satisfied; `Checklist` computes a score from them. The
paper chooses advantages of whole trajectories, A = R - mean of the group: denser credit learns faster at first and
collapses earlier. The paper's other levels are `ChecklistRelative(items=8)` for steps, and for turns
`GroupRelative(column="turn_reward", level="step", group_by="group_id,turn", voter="trajectory", scale="none")`; the
public code requires five rollouts in a turn, `votes_at_least=5` and `members_at_least=5`. The ratio of recomputed to
sampled probabilities corrects the mismatch of engine and trainer: it is cut at 2, and draws with a token below 1e-4
are left out. The clipped ratio is relative to the recomputed log-probs. Draws whose judge failed neither vote nor
train.

Equations:
    Read: sections 3.3 and 3.4 and the appendix of the paper, and the public code.

    - 2, reward of an item: `Checklist`.
    - 3, backfilled reward: `Checklist`, the columns `item_reward` and `item_eligible`.
    - 4, reward of a rollout: `Checklist`, divided by the number of turns of the rollout.
    - 5, trajectory level: `GroupRelative(scale="none")`.
    - 6, reward of a turn: `Checklist`, the column `turn_reward`.
    - 7, turn level: an option, `GroupRelative(column="turn_reward", level="step", ...)`.
    - 8, 9 and 10, baseline, item at a step and step level: an option, `ChecklistRelative`.
    - P1, strictness: left out: the environment ends a rollout whose strict items are missed.
    - C1, turn level in the code: an option, `votes_at_least=5`; if the judge failed, the draw has no score.
    - C2, rollout reward in the code: left out: the code divides by the turns of the checklist, so an early end has a
      smaller reward.
    - C3, step level in the code: its baseline is an option, `ChecklistRelative(members_at_least=5)`; left out: the
      variant of the script, which turns off the division by weights.
    - C4, loss: `Policy(kl=KL(0.001))`, mean over tokens; `ImportanceWeight`, cut at 2.

Differs:
    - KL: 0.001 in the paper and here, 0.0001 in the script.
    - Optimizer steps a batch: the source has mini-batches of 128, but does not state the batch; 1 here.
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
from agentrl_core.operators.process_rewards import checklist
from agentrl_core.weight import ImportanceWeight

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core import Batch


@dataclass(frozen=True)
class Checklist(BatchComponent):
    """Score a trajectory by the checklist items its steps earn: (1 / turns) * sum of w_c over earned items c.

    The step columns hold a judge's verdicts: `satisfied.0`, `satisfied.1`, ... whether the item holds after the step
    (NaN: the turn has no such item), `item_weight.c` its weight, `item_needs.c` the items it depends on, as the sum
    of 2^d, and `turn`, the number of the turn, whose steps are contiguous. An item is eligible at a step if the items
    it depends on were satisfied before the step and the item itself was not. The first step after which it is
    satisfied earns it, if it was eligible. A draw has no score if `judge_failed` is 1 at any of its steps. Besides
    `score`, the component writes `turn_reward`, the sum that the step's turn earned, and for each item
    `item_reward.c` (1 if it is eligible and this or a later step of the turn satisfies it) and `item_eligible.c`, for
    `ChecklistRelative`. Source: CM2, arXiv:2602.12268.

    Args:
        items: largest number of items of a turn.
        delay: an earned item counts delay ** (number of earlier steps of its turn at which it was eligible).

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
        """Yield the columns to read: for each item the judge's verdict, the weight and the dependencies."""
        for item in range(self.items):
            yield from (step(f"{name}.{item}") for name in ("satisfied", "item_weight", "item_needs"))

    def own_makes(self) -> Iterable[Column]:
        """Yield the columns that are made: reward and eligibility of each item at each step."""
        for item in range(self.items):
            yield from (step(f"{name}.{item}") for name in ("item_reward", "item_eligible"))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns of `makes`."""
        rows, draws = Rows(batch, "step"), Rows(batch, "draw")
        turns = keys.composite(rows.draws, rows.keys("turn"))
        starts = np.flatnonzero(np.append(True, turns[1:] != turns[:-1])[: len(turns)])
        if len(starts) != len(np.unique(turns)):
            first = starts[np.unique(turns[starts], return_index=True)[1]]
            row = np.setdiff1d(starts, first)[0]
            raise InvalidInputError(
                f"column 'turn' of draw {rows.draws[row]} comes back to an earlier turn at step {row}; number the "
                "turns of each draw in order"
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
        # The turns of a draw are contiguous, so turns are in the order of draws.
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
    """Compute a step's advantage from the checklist items that the step could earn.

        advantage = sum_c w_c (r_c - b_c) / sum_c w_c, over the items c that are eligible at the step

    r_c is 1 if this or a later step of the turn satisfies the item (`item_reward.c`). b_c is the share of the group's
    draws that satisfied the item in that turn; a draw that did not reach the item did not satisfy it. A step without
    eligible items gets 0. Draws without a score neither vote nor get a value. The input columns are those that
    `Checklist` writes.

    Args:
        items: largest number of items of a turn, as in `Checklist`.
        members_at_least: at least 1: b_c is the share of the draws that reached the item, and items that fewer draws
            reached are left out; None: the share of all draws of the group.

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
        """Return the columns to read: verdict, weight, reward and eligibility of each item."""
        kinds = ("satisfied", "item_weight", "item_reward", "item_eligible")
        return (step(f"{name}.{item}") for item in range(self.items) for name in kinds)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on steps."""
        rows = Rows(batch, "step")
        turns = keys.composite(rows.draws, rows.keys("turn"))
        turn_groups, groups = rows.keys("group_id,turn"), rows.keys("group_id")
        voters = group.statistics(rows.values("score"), groups, voter_ids=rows.draws, valid=rows.valid).count[groups]
        total, weight = np.zeros(len(rows)), np.zeros(len(rows))
        for item in range(self.items):
            satisfied = rows.values(f"satisfied.{item}")
            valid = rows.valid & np.isfinite(satisfied)
            reached = group.statistics(satisfied, turns, valid=valid).most[turns]
            share = group.statistics(reached, turn_groups, voter_ids=turns, valid=valid)
            baseline, members = np.nan_to_num(share.mean[turn_groups], nan=0.0), share.count[turn_groups]
            counts = valid & rows.flags(f"item_eligible.{item}")
            if self.members_at_least is None:
                baseline = baseline * members / np.maximum(voters, 1.0)
            else:
                counts &= members >= self.members_at_least
            item_weight = np.where(counts, rows.values(f"item_weight.{item}"), 0.0)
            gain = rows.values(f"item_reward.{item}") - baseline
            total, weight = total + item_weight * gain, weight + item_weight
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
