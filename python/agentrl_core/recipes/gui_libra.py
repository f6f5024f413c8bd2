"""GUI-Libra: GUI agents whose every step has several right actions, of which one is rewarded (arXiv:2602.22190).

A wrong action of a task that is hardly ever solved may have been right: negative advantages of a group weigh

    clamp(0.5 + 1.5 * mean score of the group, 0, 1).

Advantages are GRPO's over the samples of one state; the loss is clipped, averaged over all tokens, with 0.001 of k3
to the reference. The policy starts from imitation, in a stage of its own (`warm_start`), where tokens of actions and
of grounding count more than those of thoughts: `imitation` is the weight of a token by its class (2 for actions in
the public script), and the loss is the mean by those weights, sum w CE / sum w. With spans (`model.spans`) of actions
it is `weight.MarkedScaled(column="acts", marked=2.0, of="imitation")(batch)`.

Equations:
    Read: the public code (of the reinforcement learning in a fork), and notes of others; the paper's text was not read.

    - C1, reward: left out: the environment pays 0.9 accuracy + 0.1 format, since it knows the demonstrated action. The
      mean score below is of this sum.
    - C2, advantage: `GroupRelative`.
    - C3, success-adaptive scaling: `NegativeBySuccess`.
    - C4, policy loss: `Policy(clip=Clip(dual=3.0))`, mean over tokens.
    - N1, KL: `KL(0.001)`, k3.
    - N2, action-aware supervised loss: `Imitation(tokens="imitation", normalised=True)` of the stage `warm_start`.

Differs:
    - Weight of action tokens: 2 in the script; it is in the column `imitation`, which the user makes.

Needs: the model reference.
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
    """Scales negative advantages down in groups of a small mean score.

    weight *= clamp(base + slope * mean score of the group, 0, 1) if the advantage is negative.

    Args:
        base: factor of a group whose mean score is 0.
        slope: how fast the factor grows with the mean score.

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
