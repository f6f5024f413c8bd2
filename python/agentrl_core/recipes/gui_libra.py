"""GUI-Libra: train GUI agents on steps with several right actions, of which only one is rewarded (arXiv:2602.22190).

In a task that is rarely solved, an action scored as wrong may have been right. So negative advantages of a group are
weighted by

    clamp(0.5 + 1.5 * mean score of the group, 0, 1).

Advantages are GRPO's over the samples of one state. The loss is clipped and averaged over all tokens, with 0.001 times
the k3 estimate of the KL to the reference. The policy starts from imitation, in a separate stage (`warm_start`), in
which tokens of actions and of grounding have larger weights than tokens of thoughts. Column `imitation` is the weight
of a token by its class (2 for actions in the public script), and the loss is the weighted mean, sum w CE / sum w. With
spans of actions (`model.spans`), `weight.MarkedScaled(column="acts", marked=2.0, of="imitation")(batch)` makes the
column.

Equations:
    Read: the public code (its reinforcement learning is in a fork), and notes of others; the paper's text was not read.

    - C1, reward: left out: the environment returns 0.9 accuracy + 0.1 format, since it has the demonstrated action. The
      mean score in C3 is the mean of this sum.
    - C2, advantage: `GroupRelative`.
    - C3, success-adaptive scaling: `NegativeBySuccess`.
    - C4, policy loss: `Policy(clip=Clip(dual=3.0))`, mean over tokens.
    - N1, KL: `KL(0.001)`, k3.
    - N2, action-aware supervised loss: `Imitation(tokens="imitation", normalised=True)` of the stage `warm_start`.

Differs:
    - Weight of action tokens: 2 in the script; here it is in the column `imitation`, which the user makes.

Needs: the reference model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, level_of, token
from agentrl_core.loss import KL, Clip, Imitation, Policy, Train

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class NegativeBySuccess(BatchComponent):
    """Scale down the weight of negative advantages in groups with a small mean score.

    weight *= clamp(base + slope * mean score of the group, 0, 1) if the advantage is negative.

    Args:
        base: factor of a group with mean score 0.
        slope: increase of the factor per unit of the mean score.

    Example:
        >>> from agentrl_core.recipes.gui_libra import NegativeBySuccess
        >>> NegativeBySuccess().needs
        (token('advantage'), draw('score'), draw('group_id'))
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("advantage"), draw("score"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (token("weight"),)

    base: float = 0.5
    slope: float = 1.5

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled, at the level of the advantage."""
        draws = Rows(batch, "draw")
        groups = draws.keys("group_id")
        means = group.statistics(draws.values("score"), groups, valid=draws.valid).mean
        factors = np.clip(self.base + self.slope * np.nan_to_num(means, nan=0.0), 0.0, 1.0)[groups]
        rows = Rows(batch, level_of(batch, "advantage", "draw"))
        return rows.scale(np.where(rows.values("advantage") < 0.0, factors[rows.draws], 1.0))


GUI_LIBRA = Recipe(
    name="gui_libra",
    source="arXiv:2602.22190",
    advantage=GroupRelative(),
    weight=NegativeBySuccess(),
    loss=(
        Train(Policy(clip=Clip(dual=3.0), kl=KL(0.001)), minibatches=2),
        Train(Imitation("token_mean", tokens="imitation", normalised=True), stage="warm_start"),
    ),
)
