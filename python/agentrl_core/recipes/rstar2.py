"""rStar2-Agent (GRPO-RoC): of many rollouts keep mostly clean successes and diverse failures, then apply GRPO.

With an outcome as the only reward, successes with broken tool calls are reinforced like clean ones. So a group of N =
32 rollouts is resampled to n = 16. Failures and successes keep their proportion: round(N_k n / N) of each, and at
least 2 if there are that many. Successes with a small penalty are preferred; failures are chosen without preference.
If both kinds would fall to their minimum, all rollouts are kept; a group with fewer than n rollouts is dropped. GRPO
compares only the kept rollouts, and groups whose rewards are all equal are masked. The clip range is 0.2 and 0.28;
there is neither a KL penalty nor an entropy term.

Source: arXiv:2508.20722. The paper draws failures at random and successes with a probability that falls with the
penalty, as here (`seed`). The public code takes the first failures and the cleanest successes (`seed=None`). The
environment reports `reward.tool_penalty`: the share of tool calls that failed (0.5 without a call), plus 1 without an
answer, otherwise plus min(1, (answers - 1) / turns).

Equations:
    Read: the public code, the abstract, and notes on the paper; its text was not read.

    - C1 and C2, penalties of tool errors and of format: left out: only the environment has access to its tools; it
      reports `reward.tool_penalty`.
    - C3, numbers: `ResampleOnCorrect(count=16, at_least=2)`.
    - C4, choice in the code: `ResampleOnCorrect(seed=None)`.
    - N1, choice in the paper: `ResampleOnCorrect`, drawn without replacement, weights 1 / p; not computed: the choice
      is random; its shares are compared over 3000 groups.
    - C5, equal rewards: `GroupFilter`, after the resampling.
    - C6, GRPO on the kept rollouts: `GroupRelative`, `Policy`, clip ranges 0.2 and 0.28.

Differs:
    - Failures: the abstract preserves all of them; the code keeps about half, in their order; here about half are
      kept, at random.
    - Order of the filter: the code removes groups with equal rewards before the resampling; the kept groups are the
      same.
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
    """Keep the score of `count` draws of each group: successes and failures in proportion, preferring clean successes.

    Successes are drawn without replacement with weights 1 / penalty, failures with equal weights. All other draws
    lose their score (NaN), so they neither vote nor are trained.

    Args:
        count: draws of each group that keep their score.
        penalty: draw column that measures how unclean a draw is, at least 0.
        at_least: smallest number of successes, and of failures, to keep, if there are that many.
        seed: seed of the choice; None: take the successes with the smallest penalty and the first failures.

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
        """Return `batch` with a new column `score` on draws."""
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
