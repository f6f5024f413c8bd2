"""Sol-RL: many cheap rollouts to look for contrast, few exact ones to learn from.

Generation in four bits is cheap and not exact. So a group is large, of it the eighth with the largest scores and the
eighth with the smallest are trained, at least one each, and the policy's log-probs in the precision of training
replace those of the cheap engine:

    A_i = (R_i - mean of the group's selected) / (std of all selected of the batch + 1e-4), at most 5
    L = - mean over tokens of min(p_trainer / p_engine, 2) min(r A, clip(r, 0.8, 1.2) A),   r = p / p_trainer

In which precision each action was sampled is a fact (`rollout.RecordPrecision`), and `recipes.jet_rl.mismatch` measures
how far the cheap engine is from the trainer. The paper trains image models: it generates the few again from their
seeds, and its loss is one of diffusion. The same seed does not give the same text in another precision, so the tokens
are kept and scored again; the correction by p_trainer / p_engine and the clipped loss are ours.

Equations:
    Read: the authors' code, and notes of others; the paper's text was not read.

    - C1, cheap stage: `RecordPrecision`; the engine and the size of a group are the user's, 96 in the code.
    - C2, selection: `Extremes`, a quarter of the group: half of it from the top, the rest from the bottom.
    - C3, exact stage: the column `recomputed_logprob`; a text is not generated again, so its reward stays.
    - C4, advantage: `GroupRelative` of what is selected, std of n over the batch and 1e-4 added to it.
    - C5, weight of a sample: left out: the advantage, limited to 5 as there, is that of a policy loss.
    - C6, implicit policies: left out: velocities of a diffusion model.
    - C7, loss: left out: that of a diffusion model.
    - C8, old policy: left out: the policy itself samples; in the code it is an average, at most half of it old.

Differs:
    - KL: the code adds 0.0001 of the squared distance of the velocities from those of the reference; none here.

Source: FP4 Explore, BF16 Train: Diffusion Reinforcement Learning via Efficient Rollout Scaling (arXiv:2604.06916).
Needs: `recomputed_logprob`, by the trainer before the first update; groups of eight or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import Policy
from agentrl_core.rollout import RecordPrecision
from agentrl_core.weight import ImportanceWeight

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Extremes(BatchComponent):
    """Keeps the draws of each group with the largest and with the smallest scores.

    Of a group of n scored draws K = floor(share n) stay, at least two: floor(K / 2) from the top, the others from the
    bottom. The draw column `selected_score` is the score of those, and nan of the others.

    Args:
        share: of the group, above 0 and at most 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.sol_rl import Extremes
        >>> Extremes(share=0.5).makes
        (draw('selected_score'), draw('keep'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("selected_score"), draw("keep"))

    share: float = option(0.25, above=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with `selected_score` and another `keep` on draws."""
        rows = Rows(batch, "draw")
        scored = np.flatnonzero(rows.valid)
        scores, groups = rows.values("score")[scored], rows.keys("group_id")[scored]
        order = np.lexsort((-scores, groups))
        counts = np.bincount(groups)
        places = np.empty(len(scored), np.int64)
        places[order] = np.arange(len(scored)) - (np.cumsum(counts) - counts)[groups[order]]
        stay = np.maximum(np.floor(self.share * counts), 2)
        best, worst = stay // 2, stay - stay // 2
        kept = np.zeros(len(rows), np.bool_)
        kept[scored] = (places < best[groups]) | (places >= (counts - worst)[groups])
        batch = rows.write(selected_score=np.where(kept, rows.values("score"), np.nan))
        return Rows(batch, "draw").keep(kept)


SOL_RL = Recipe(
    name="sol_rl",
    source="arXiv:2604.06916",
    rollout=RecordPrecision(),
    advantage=(
        Extremes(),
        GroupRelative(column="selected_score", scale_by="batch", ddof=0, eps=1e-4, at_most=5.0),
    ),
    weight=ImportanceWeight(),
    loss=Policy(),
    old_logprob="recomputed",
)
