"""rStar2-Agent (GRPO-RoC): of many rollouts keep rather clean successes and as many kinds of failure, then GRPO.

With an outcome as the only reward, successes with broken tool calls are reinforced like clean ones. So a group of N =
32 rollouts is resampled to n = 16: failures and successes in their proportion, round(N_k n / N) of each and at least
2 if there are as many; of the successes those with the smallest penalty, of the failures any. If both kinds
would fall to their minimum, all are kept; a group with fewer than n rollouts is dropped. GRPO compares the survivors
alone, and groups whose rewards are all equal leave the loss. Clip 0.2 and 0.28; neither KL nor entropy.

Source: arXiv:2508.20722. The paper draws failures at random (`seed`) and successes with a probability that falls with
the penalty; the public code takes the first failures (`seed=None`) and the cleanest successes, as here. The
environment reports `reward.tool_penalty`: the share of tool calls that failed (0.5 without a call), plus 1 without an
answer or min(1, (answers - 1) / turns).

Equations:
    Read: the public code, the abstract, and notes on the paper; its text was not read.

    - C1 and C2, penalties of tool errors and of format: left out: the environment knows its tools; it reports
      `reward.tool_penalty`.
    - C3, numbers: `ResampleOnCorrect(count=16, at_least=2)`.
    - C4, choice in the code: `ResampleOnCorrect(seed=None)`.
    - N1, choice in the paper: `ResampleOnCorrect`, drawn without replacement, weights 1 / p; not computed: by chance;
      its shares are compared over 3000 groups.
    - C5, equal rewards: `GroupFilter`, after the resampling.
    - C6, GRPO on the kept rollouts: `GroupRelative`, `Policy`, clip ranges 0.2 and 0.28.

Differs:
    - Failures: the abstract preserves all of them, the code about half, in their order; here about half, by chance.
    - Order of the filter: groups with equal rewards go before the resampling in the code; the kept ones are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.loss import Clip, Policy
from agentrl_core.operators.filters import resample_quota
from agentrl_core.reward import OutcomeScore
from agentrl_core.weight import GroupFilter

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class ResampleOnCorrect(BatchComponent):
    """Leaves `count` draws of each group their score: successes and failures in proportion, rather clean successes.

    Successes are drawn without replacement with weights 1 / penalty, failures with equal weights. The others have no
    score (NaN), so that they neither vote nor are trained.

    Args:
        count: draws of each group that keep their score.
        penalty: how unclean a draw is, at least 0.
        at_least: successes, and failures, that are kept where there are as many.
        seed: of the choice; None: the successes with the smallest penalty and the first failures.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: with a seed, a penalty is negative.

    Example:
        >>> from agentrl_core.recipes.rstar2 import ResampleOnCorrect
        >>> ResampleOnCorrect(count=8).makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("score"),
        draw("success"),
        draw("group_id"),
        draw("trajectory_id"),
    )
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    count: int = option(16, at_least=1)
    penalty: str = column_name("reward.tool_penalty", level="draw")
    at_least: int = option(2, at_least=0)
    seed: int | None = option(0, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        survivors = resample_quota(
            np.where(rows.valid, rows.values(self.penalty), 0.0),
            rows.flags("success"),
            rows.keys("group_id"),
            rows.values("trajectory_id").astype(np.int64),
            target=self.count,
            at_least=self.at_least,
            seed=self.seed,
            valid=rows.valid & rows.is_known("success"),
        )
        return rows.write(score=np.where(survivors, rows.values("score"), np.nan))


RSTAR2 = Recipe(
    name="rstar2",
    source="arXiv:2508.20722",
    reward=(OutcomeScore(), ResampleOnCorrect()),
    advantage=GroupRelative(),
    weight=GroupFilter(),
    loss=Policy(clip=Clip(0.2, 0.28), aggregate="token_mean"),
)
