"""ReDit: add a little noise to discrete rewards, so that groups of equal rewards have a gradient (arXiv:2506.18631).

    R' = R + u,  u uniform in [-0.05, 0.05],   A = (R' - mean) / std

A group of equal rewards gets advantages of full size. This is intended: the size of the noise cancels. Filters read the
reward without noise, `score_clean`.

Equations:
    Read: the paper's abstract, and notes of others.

    - S1, dithered reward: `NoiseReward`, new noise for each draw of each iteration.
    - S2, noise: uniform with a = 0.05; `NoiseReward(kind="normal")` has the same standard deviation, a / sqrt(3).
    - S3, group advantage: `GroupRelative`, std of n - 1 with nothing added to it.
    - S4, policy loss: `Policy`, clip range 0.2.

Differs:
    - Clip range, KL, optimizer steps: as in GRPO in the paper, without numbers; 0.2, none and 1 here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import Policy
from agentrl_core.operators.score_shaping import add_noise
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class NoiseReward(BatchComponent):
    """Add noise to discrete scores, so that groups of equal scores have a gradient.

    The noise is uniform in [-amplitude, amplitude] or normal, with mean 0 and standard deviation amplitude / sqrt(3).
    It is determined by `seed`, and by the iteration and the trajectory of the draw. The score without noise is kept as
    `score_clean`, for filters. Source: ReDit, arXiv:2506.18631.

    Args:
        amplitude: largest uniform noise, see above.
        kind: `uniform` or `normal`.
        only_if_std_below: add noise only to groups whose scores have a smaller standard deviation; None: to all groups.
        seed: seed of the noise.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.redit import NoiseReward
        >>> NoiseReward().makes
        (draw('score'), draw('score_clean'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("iteration"), draw("trajectory_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"), draw("score_clean"))

    amplitude: float = option(0.05, at_least=0)
    kind: Literal["uniform", "normal"] = "uniform"
    only_if_std_below: float | None = option(None, above=0)
    seed: int = option(0, at_least=0)

    def own_needs(self) -> Iterable[Column]:
        """Return the column of group ids if the standard deviation of a group decides whether it gets noise."""
        if self.only_if_std_below is not None:
            yield draw("group_id")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `score` and `score_clean` on draws."""
        rows = Rows(batch, "draw")
        scores, noisy = rows.values("score"), rows.valid
        if self.only_if_std_below is not None:
            groups = rows.keys("group_id")
            spreads = group.statistics(scores, groups, valid=rows.valid).std[groups]
            noisy = noisy & (np.nan_to_num(spreads, nan=0.0) < self.only_if_std_below)
        iterations, trajectories = (rows.values(name).astype(np.int64) for name in ("iteration", "trajectory_id"))
        dithered = add_noise(
            scores,
            seed=self.seed,
            ids=(iterations << 32) ^ trajectories,
            amplitude=self.amplitude,
            kind=self.kind,
            valid=noisy,
        )
        return rows.write(score=np.where(noisy, dithered, scores), score_clean=scores)


REDIT = Recipe(
    name="redit",
    source="arXiv:2506.18631",
    reward=(OutcomeScore(), NoiseReward()),
    advantage=GroupRelative(eps=0.0),
    loss=Policy(),
)
