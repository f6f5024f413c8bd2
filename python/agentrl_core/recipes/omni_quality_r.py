"""OmniQuality-R: reward predicted scores near the true ones, and train only uncertain tokens (arXiv:2510.10609).

    a = exp(-error^2 / (2 * 0.8^2)),   R = a + 0.5 for the right format;   groups with std of a <= 0.001 are replaced
    z = clip((R - mean) / std, -10, 10),   A_t = z - 0.001 * sum from t on of (log p_old - log p_ref)
    L = mean over sequences of the mean over the fifth of their tokens with the highest entropy of
        - min(r A, clip(r, 0.8, 1.2) A), at most 3 |A| if A < 0

The entropy gate belongs to the second stage of the method; the first stage is the same without `mask`. A batch of 1024
answers has 16 optimizer steps.

Needs: the fact `error` of trajectories: the predicted minus the true score, or a large number, such as 100, if the
answer contains no number (then a is 0); the reward component `format`, 1 or 0; the reference model.

Equations:
    Read: the authors' code, and the abstract; the paper's text was not read.

    - C1, accuracy reward: `GaussianProximity(width=0.8)`.
    - C2, reward: `CombineReward("reward.format", coefficient=0.5)`.
    - C3, group filter: `DynamicSampling` by the column `accuracy`.
    - C4, group norm: `GroupRelative(eps=1e-9)`; its std divides by n - 1.
    - C5, advantage of a token: `Discounted(kl_coefficient=0.001)`, applied to the clipped advantage.
    - C6, entropy gate: `TopTokens`, whose quantile keeps ceil(0.2 n) tokens, and ties.
    - C7, policy loss: `Policy`, `Clip(dual=3.0)`: the bound of 3 on the ratio only affects negative advantages.

Differs:
    - Rounds of rollouts: until the buffer is full in the code; at most 10 per iteration here.
    - KL: in the rewards of tokens, as in the code (`Discounted(kl_coefficient=0.001)`); the loss has no KL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw
from agentrl_core.loss import Clip, Policy, TopTokens
from agentrl_core.reward import CombineReward, GaussianProximity
from agentrl_core.select import Band, DynamicSampling

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Accuracy(BatchComponent):
    """Copy the score computed so far to the draw column `accuracy`, by which groups are filtered.

    Example:
        >>> from agentrl_core.recipes.omni_quality_r import Accuracy
        >>> Accuracy().makes
        (draw('accuracy'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("accuracy"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `accuracy`."""
        rows = Rows(batch, "draw")
        return rows.write(accuracy=rows.values("score"))


OMNI_QUALITY_R = Recipe(
    name="omni_quality_r",
    source="arXiv:2510.10609",
    reward=(
        GaussianProximity(column="error", width=0.8),
        Accuracy(),
        CombineReward(column="reward.format", coefficient=0.5),
    ),
    admit=DynamicSampling(Band(std_above=1e-3, ddof=1, accept_single=True), max_rounds=10, column="accuracy"),
    advantage=(
        GroupRelative(eps=1e-9, at_most=10.0),
        Discounted(column="", outcome="advantage", level="token", kl_coefficient=0.001),
    ),
    loss=Policy(
        clip=Clip(dual=3.0),
        mask=TopTokens("entropy", 0.2, scope="sequence", denominator="kept"),
        aggregate="sequence_mean",
    ),
    minibatches=16,
)
