"""Rewards of steps that satisfy the items of checklists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import group, keys
from agentrl_core.reward.process import checklist

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Checklist(BatchComponent):
    """score = (1 / turns) * sum of w_c over the items c that its steps earn; also the rewards of turns and of items.

    The step columns say what a judge found: `satisfied.0`, `satisfied.1`, ... whether the item holds after the step
    (NaN: the turn has no such item), `item_weight.c` its weight, `item_needs.c` the items it depends on, as the sum of
    2^d, and `turn`, whose steps stand together. An item is eligible at a step if what it depends on was satisfied
    before and it was not; the first step after which it is satisfied earns it, if it was eligible. A draw with a step
    whose column `judge_failed` is 1 has no score. Besides `score`, it makes `turn_reward`, what the step's turn earned,
    and for each item `item_reward.c` (1 where it is eligible and this or a later step of the turn satisfies it) and
    `item_eligible.c`, for `recipes.cm2.ChecklistRelative`. Source: CM2, arXiv:2602.12268.

    Args:
        items: how many items a turn can have, 1 to 62.
        delay: an item counts delay ** (steps of its turn that it was eligible before), 0 to 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import Checklist
        >>> Checklist(items=1).makes
        (('draw', 'score'), ('step', 'turn_reward'), ('step', 'item_reward.0'), ('step', 'item_eligible.0'))
    """

    phase: ClassVar[str] = "reward"

    items: int
    delay: float = 1.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(1 <= self.items <= 62, "items", "give a number from 1 to 62")
        self.require(0.0 <= self.delay <= 1.0, "delay", "give a number from 0 to 1")

    @property
    def needs(self) -> tuple[Column, ...]:
        """What the judge found, and what the items are."""
        names = [f"{name}.{item}" for item in range(self.items) for name in ("satisfied", "item_weight", "item_needs")]
        return needed("step", "turn", "judge_failed", *names)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score of each draw, and the rewards of turns and items at each step."""
        items = [f"{name}.{item}" for item in range(self.items) for name in ("item_reward", "item_eligible")]
        return (("draw", "score"), *needed("step", "turn_reward", *items))

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
        made = checklist(
            known & (satisfied == 1.0),
            ((needs[:, :, None] >> np.arange(self.items)) & 1).astype(np.bool_),
            np.append(starts, len(rows)),
            delay=self.delay,
        )
        eligible = made.eligible & known
        of_step = np.where(known, made.earned * np.nan_to_num(weight, nan=0.0), 0.0).sum(axis=1)
        of_turn = group.sums(of_step, turns)
        # Turns follow each other, so their numbers stand in order of draws.
        draw_of_turn = rows.draws[starts]
        total = np.bincount(draw_of_turn, weights=of_turn, minlength=len(draws))
        count = np.bincount(draw_of_turn, minlength=len(draws))
        failed = np.bincount(rows.draws, weights=rows.flags("judge_failed"), minlength=len(draws)) > 0.0
        items = {f"item_reward.{item}": made.backfilled[:, item] for item in range(self.items)}
        items |= {f"item_eligible.{item}": eligible[:, item] for item in range(self.items)}
        batch = rows.write(turn_reward=of_turn[turns], **items)
        return Rows(batch, "draw").write(score=np.where(failed, np.nan, total / np.maximum(count, 1)))

    def _matrix(self, rows: Rows, name: str) -> NDArray[np.float64]:
        return np.stack([rows.values(f"{name}.{item}") for item in range(self.items)], axis=1)
