"""Sol-RL: many cheap rollouts to look for contrast, few exact ones to learn from.

Generation in four bits is cheap and not exact. So a group is large, of it the eighth with the largest scores and the
eighth with the smallest are trained, at least one each, and the policy's log-probs in the precision of training
replace those of the cheap engine:

    A_i = (R_i - mean) / std of the whole group
    L = - mean over tokens of min(p_trainer / p_engine, 2) min(r A, clip(r, 0.8, 1.2) A),   r = p / p_trainer

A group of equal scores leaves. In which precision each action was sampled is a fact (`rollout.RecordPrecision`), and
`recipes.jet_rl.mismatch` measures how far the cheap engine is from the trainer.

Source: FP4 Explore, BF16 Train: Diffusion Reinforcement Learning via Efficient Rollout Scaling (arXiv:2604.06916). It
regenerates the few from their seeds; the same seed does not give the same text in another precision, so the tokens are
kept and scored again. How large both sets are, and whose mean and deviation count, is not known: a quarter and the
whole group's are choices of ours, and so is the correction by p_trainer / p_engine.

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
from agentrl_core.weight import GroupFilter, ImportanceWeight
from agentrl_core.weight.select import top_rows

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Extremes(BatchComponent):
    """Keeps the draws of each group with the largest and with the smallest scores.

    Args:
        share: of the group, half of it from each end (floor), at least one from each, above 0 and at most 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.sol_rl import Extremes
        >>> Extremes(share=0.5).makes
        (draw('keep'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("keep"),)

    share: float = option(0.25, above=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on draws."""
        rows = Rows(batch, "draw")
        scores, groups = np.where(rows.valid, rows.values("score"), 0.0), rows.keys("group_id")
        kept = np.zeros(len(rows), np.bool_)
        for largest in (True, False):
            kept |= top_rows(scores, groups, fraction=self.share / 2, at_least=1, largest=largest, valid=rows.valid)
        return rows.keep(kept)


SOL_RL = Recipe(
    name="sol_rl",
    source="arXiv:2604.06916",
    rollout=RecordPrecision(),
    advantage=GroupRelative(),
    weight=(GroupFilter(), Extremes(), ImportanceWeight()),
    loss=Policy(),
    old_logprob="recomputed",
)
