"""RecPO (R2ec): train reasoning on all answers, recommendations on the best answer only (arXiv:2505.16994).

    R = 0.95 NDCG + 0.05 similarity of the target,   A = (R - mean) / (std + 1e-8)
    L = - mean over draws of sum over tokens of min(r A, clip(r, 0.8, 1.2) A); of recommendations in the best draw only

The environment returns the NDCG of the ranking as reward; the small continuous part separates equal ranks. Draws
whose recommendation is left out still count in the mean.

Equations:
    Read: the public code, the paper's sections 2 to 3.2.3 and appendices D to F without formulas, and notes of others
    with them.

    - 8, objective: `Policy(aggregate="constant", constant=1.0)` and `BestMarked`.
    - C1, reward: two `CombineReward`; the environment computes NDCG and the softmax of similarities.
    - C2, advantage: `GroupRelative(eps=1e-8)`.
    - C3, other advantage: left out: an option of the code that is off; R minus the mean of the others would be
      `GroupRelative(center="leave_one_out", scale="none")`.
    - C4, token loss: left out: the code divides by tokens and by rows, the paper by rollouts (8).
    - C5, item loss: `BestMarked` computes its factor m; not computed: the softmax over the items of a batch belongs
      to a head that scores embeddings; here a recommendation is an action of tokens.
    - C6, loss: left out: it is the sum of the code's two losses; this recipe has the paper's loss (8).

Differs:
    - Rollout alone: the advantage of a group's only rollout is 1 in the code, 0 here.
    - Recommendations that are trained: from the best rollout in the paper and by default in the code, from two in its
      script: `BestMarked(count=2)`.
    - Old policy: the code sets every ratio to 1, so its clip range never acts; here ratios are relative to the policy
      that sampled.
    - Clip range: 0.2 on both sides in the paper and here, 0.2 and 0.28 in the code. The paper makes one optimizer
      step a batch (algorithm 1), and so does this recipe: the range acts on stored rollouts alone.

Needs: the fact `recommends` of steps (1 if the final action recommends), and the reward's component `similarity`.
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
    """Train marked steps or tokens only in the `count` draws of a group with the largest advantages.

    The weight of marked steps is multiplied by 0 in all other draws. Of draws with equal advantages, the one with the
    smallest trajectory id is better. If reasoning and recommendation are one action, use `level="token"` and a column
    of spans (`model.spans`).

    Args:
        column: column that marks rows by a value other than 0.
        level: level of the marked rows: `step` or `token`.
        count: number of draws of a group that train their marked rows.

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
        """Return the marking column: spans of tokens, or a fact of steps."""
        return (Column(self.level, self.column, "spans" if self.level == "token" else None),)

    def own_makes(self) -> tuple[Column, ...]:
        """Return the column that the component writes: the weight of each row."""
        return (Column(self.level, "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `weight` scaled."""
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
        CombineReward(column="score", coefficient=-0.05),  # leaves 0.95 of the score
        CombineReward(column="reward.similarity", coefficient=0.05),
    ),
    advantage=GroupRelative(eps=1e-8),
    weight=BestMarked(column="recommends"),
    loss=Policy(clip=Clip(0.2, 0.2), aggregate="constant", constant=1.0),
)
