"""Sol-RL: sample many rollouts at low precision, and train only the best and the worst of them.

Generation in four bits is cheap but not exact. So groups are large, and only the eighth with the largest scores and
the eighth with the smallest scores are trained, at least one draw each. The policy's log-probs in training precision
replace the log-probs of the cheap engine:

    A_i = (R_i - mean of the group's selected) / (std of all selected of the batch + 1e-4), at most 5
    L = - mean over tokens of min(p_trainer / p_engine, 2) min(r A, clip(r, 0.8, 1.2) A),   r = p / p_trainer

The precision of the engine that sampled each action is recorded as a fact (`rollout.RecordPrecision`), and
`recipes.jet_rl.mismatch` measures how much the cheap engine differs from the trainer. The paper trains image models:
it generates the selected images again from their seeds, and its loss is a diffusion loss. For texts, the same seed
does not give the same text in another precision, so here the tokens are kept and their log-probs recomputed. The
correction by p_trainer / p_engine and the clipped loss are ours.

Equations:
    Read: the authors' code, and third-party notes; the paper's text was not read.

    - C1, cheap stage: `RecordPrecision`; the user chooses the engine and the group size, which is 96 in the code.
    - C2, selection: `BestAndWorst`, a quarter of the group: half of it from the top, the rest from the bottom.
    - C3, exact stage: the column `recomputed_logprob`; a text is not generated again, so its reward stays.
    - C4, advantage: `GroupRelative` of the selected draws, std with divisor n over the batch, plus 1e-4.
    - C5, weight of a sample: left out: here the advantage, limited to 5 as in the code, enters a policy loss.
    - C6, implicit policies: left out: they are velocities of a diffusion model.
    - C7, loss: left out: it is the loss of a diffusion model.
    - C8, old policy: left out: here the policy itself samples; in the code the sampling policy is an average, at most
      half of it old.

Differs:
    - KL: the code adds 0.0001 times the squared distance between the velocities of the model and of the reference; no
      KL here.

Source: FP4 Explore, BF16 Train: Diffusion Reinforcement Learning via Efficient Rollout Scaling (arXiv:2604.06916).
Needs: `recomputed_logprob`, computed by the trainer before the first update; groups of eight or more.
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
class BestAndWorst(BatchComponent):
    """Keep the draws of each group with the largest and with the smallest scores.

    Of a group of n scored draws K = floor(share n) are kept, at least two: floor(K / 2) from the top, the rest from
    the bottom. The draw column `selected_score` is the score of a kept draw, and nan for all others.

    Args:
        share: share of the group to keep, above 0 and at most 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.sol_rl import BestAndWorst
        >>> BestAndWorst(share=0.5).makes
        (draw('selected_score'), draw('keep'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("selected_score"), draw("keep"))

    share: float = option(0.25, above=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with `selected_score` and a new `keep` on draws."""
        rows = Rows(batch, "draw")
        scored = np.flatnonzero(rows.valid)
        scores, groups = rows.values("score")[scored], rows.keys("group_id")[scored]
        order = np.lexsort((-scores, groups))
        counts = np.bincount(groups)
        places = np.empty(len(scored), np.int64)
        places[order] = np.arange(len(scored)) - (np.cumsum(counts) - counts)[groups[order]]
        num_kept = np.maximum(np.floor(self.share * counts), 2)
        best, worst = num_kept // 2, num_kept - num_kept // 2
        kept = np.zeros(len(rows), np.bool_)
        kept[scored] = (places < best[groups]) | (places >= (counts - worst)[groups])
        batch = rows.write(selected_score=np.where(kept, rows.values("score"), np.nan))
        return Rows(batch, "draw").keep(kept)


SOL_RL = Recipe(
    name="sol_rl",
    source="arXiv:2604.06916",
    rollout=RecordPrecision(),
    advantage=(
        BestAndWorst(),
        GroupRelative(column="selected_score", scale_by="batch", ddof=0, eps=1e-4, at_most=5.0),
    ),
    weight=ImportanceWeight(),
    loss=Policy(),
    old_logprob="recomputed",
)
