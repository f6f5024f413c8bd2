"""RecPO (R2ec): reasoning is learned from all answers, the recommendation from the best one (arXiv:2505.16994).

    R = 0.95 NDCG + 0.05 similarity of the target,   A = (R - mean) / (std + 1e-8)
    L = - mean over draws of sum over tokens of min(r A, clip(r, 0.8, 1.2) A); of recommendations in the best draw only

The environment pays the gain of the ranking; the small continuous part separates equal ranks. Draws whose
recommendation is left out still count in the mean.

Equations:
    Read: the public code, the paper's sections 2 to 3.2.3 and appendices D to F without formulas, and notes of others
    with them.

    - 8, objective: `Policy(aggregate="constant", constant=1.0)` and `BestMarked`.
    - C1, reward: two `CombineReward`; NDCG and the softmax of similarities are the environment's.
    - C2, advantage: `GroupRelative(eps=1e-8)`.
    - C3, other advantage: left out: an option of the code that is off; R minus the mean of the others would be
      `GroupRelative(center="leave_one_out", scale="none")`.
    - C4, token loss: left out: the code divides by tokens and by rows, the paper by rollouts (8).
    - C5, item loss: `BestMarked` for m; not computed: the softmax over the items of a batch, which is of a head that
      scores embeddings; a recommendation is an action of tokens here.
    - C6, loss: left out: the sum of the code's two; the paper's is here (8).

Differs:
    - Rollout alone: its advantage is 1 in the code, 0 here.
    - Recommendations that are trained: those of the best rollout in the paper and by default in the code, of two in its
      script: `BestMarked(count=2)`.
    - Old policy: the code takes every ratio as 1, so that its clip range never acts; here they are of the policy that
      sampled.
    - Clip range: 0.2 on both sides in the paper and here, 0.2 and 0.28 in the code. The paper makes one optimizer step
      a batch (algorithm 1), and so does this recipe: the range acts on stored rollouts alone.

Needs: the fact `recommends` of steps (1 if the final action is), and the reward's component `similarity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward import CombineReward, OutcomeScore

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class BestMarked(BatchComponent):
    """Trains steps of one kind only in the draws of a group that have the largest advantages.

    weight *= 0 for marked steps of the other draws; of equal draws the one with the smallest trajectory id is better.
    Where reasoning and recommendation are one action, `level="token"` and a column of spans (`model.spans`).

    Args:
        column: that marks, where it is other than 0.
        level: of the marked rows: `step` or `token`.
        count: so many draws of a group train their marked steps.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.rec_po import BestMarked
        >>> BestMarked(column="recommends").makes
        (step('weight'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("group_id"), draw("trajectory_id"))

    column: str = option(filled=True)
    level: Literal["step", "token"] = "step"
    count: int = option(1, at_least=1)

    def own_needs(self) -> tuple[Column, ...]:
        """The marking column: spans of tokens, or a fact of steps."""
        return (Column(self.level, self.column, "spans" if self.level == "token" else None),)

    def own_makes(self) -> tuple[Column, ...]:
        """The weight of each row."""
        return (Column(self.level, "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        draws, rows = Rows(batch, "draw"), Rows(batch, self.level)
        order = np.argsort(draws.values("trajectory_id"), kind="stable")
        places = np.empty(len(draws), dtype=np.int64)
        advantages, groups = draws.values("advantage")[order], draws.keys("group_id")[order]
        places[order] = group.rank(-advantages, groups, valid=draws.valid[order])
        best = draws.valid & (places < self.count)
        return rows.scale((best[rows.draws] | ~rows.flags(self.column)).astype(np.float64))


REC_PO = Recipe(
    name="rec_po",
    source="arXiv:2505.16994",
    reward=(
        OutcomeScore(),
        CombineReward(column="score", coefficient=-0.05),  # 0.95 of it is left
        CombineReward(column="reward.similarity", coefficient=0.05),
    ),
    advantage=GroupRelative(eps=1e-8),
    weight=BestMarked(column="recommends"),
    loss=Policy(clip=Clip(0.2, 0.2), aggregate="constant", constant=1.0),
)
