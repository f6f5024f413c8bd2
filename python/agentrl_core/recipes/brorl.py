"""BroRL: sample hundreds of rollouts for each task, so that unsampled answers weigh little.

The part of a policy step that comes from unsampled answers can have either sign, and shrinks with the number N of
rollouts. So a task gets 512 rollouts instead of 16. They run in pieces of 64, and all of them vote in the group's mean
and standard deviation, which are exact over the whole group. With `trained=M`, M randomly chosen rollouts are trained
and the rest only votes. The paper scales learning rate and batch with N; how is not published. Advantages and loss are
those of ProRL v2, on which the paper builds:

    A = R - mean of the group, then (A - mean) / max(std, 1e-4) over all tokens of the batch
    L = mean over tokens of - w min(u A, clip(u, 0.8, 1.27) A) + 1e-4 k2(p, p_ref),   u = p / p_old
    w = p_old / p_sampled, 0 outside [0.5, 5]

The reward of a truncated answer is set to 0 (`StopProperly`).

Equations:
    Read: the abstract, a review of the paper, and OpenRLHF's script of ProRL v2; the paper's text was not read.

    - N1 and N2, mass balance and net reward: not computed: they analyse one step on a softmax, and are not part of the
      training.
    - N3, large N: `Pieces(count=512)`; not computed: a limit of N1.
    - C1, advantage of the recipe: two `GroupRelative` in a chain, and `DynamicSampling(Band())`.
    - C2, loss of the recipe: `Policy`, and `ImportanceWeight(kind="mask")` for w.
    - C3, stop properly penalty: `StopProperly(0.0)`; the filter reads the reward before this penalty.

Differs:
    - Optimizer steps a batch: 8 in the script, with groups of 16, and here; the paper's number is not known.
    - Reference: ProRL renews it now and then; here it stays fixed.

Source: BroRL: Scaling Reinforcement Learning via Broadened Exploration (arXiv:2510.01180). Needs: the model reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, step
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import Branch, Group, Rollout
from agentrl_core.select import Band, DynamicSampling
from agentrl_core.weight import ImportanceWeight

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class StopProperly(BatchComponent):
    """Scale the score of draws that have a truncated step.

        score <- coefficient * score

    Args:
        coefficient: factor of the score, from 0 to 1.

    Example:
        >>> from agentrl_core.recipes.brorl import StopProperly
        >>> StopProperly().needs
        (draw('score'), step('truncated'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), step("truncated"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    coefficient: float = option(0.0, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a scaled `score` for truncated draws."""
        draws, cut = Rows(batch, "draw"), Rows(batch, "step").flagged("truncated")
        scores = draws.values("score")
        return draws.write(score=np.where(cut, self.coefficient * scores, scores))


@dataclass(frozen=True)
class Pieces(Rollout):
    """Run a large group in pieces; all members vote, and a part of them is trained.

    Args:
        count: N, the size of a group. It replaces the collector's `group_size`.
        piece: number of rollouts that run at once.
        trained: M, the number of trained rollouts; None: all.

    Raises:
        RecipeError: an option is out of range, or `trained` is larger than `count`.

    Example:
        >>> from agentrl_core.recipes.brorl import Pieces
        >>> Pieces().final_group_size(group_size=16)
        512
    """

    count: int = option(512, at_least=1)
    piece: int = option(64, at_least=1)
    trained: int | None = option(None, at_least=1)

    def check_options(self) -> None:
        """Require trained <= count."""
        most = f"give a whole number up to count={self.count}, or None"
        self.require(self.trained is None or self.trained <= self.count, "trained", most)

    def final_group_size(self, group_size: int) -> int:
        """Return `count`; `group_size` is not used."""
        del group_size
        return self.count

    async def group(self, group: Group) -> None:
        """Run one piece after the other, then choose the trained rollouts at random."""
        branches: list[Branch] = []
        while remaining := self.count - len(branches):
            branches += await group.run(group.start_many(min(self.piece, remaining)))
        if self.trained is not None:
            order = sorted(range(self.count), key=lambda place: group.uniform("trained", place))
            for place in order[self.trained :]:
                branches[place].mask("only votes")


BRORL = Recipe(
    name="brorl",
    source="arXiv:2510.01180",
    rollout=Pieces(),
    reward=(OutcomeScore(), StopProperly(0.0)),
    admit=DynamicSampling(Band(), column="reward"),
    advantage=(
        GroupRelative(scale="none"),
        GroupRelative(column="advantage", level="token", group_by="batch", ddof=0, eps=0.0, scale_at_least=1e-4),
    ),
    weight=ImportanceWeight(kind="mask", at_least=0.5, at_most=5.0),
    loss=Policy(clip=Clip(high=0.27), kl=KL(1e-4, "k2")),
    minibatches=8,
    old_logprob="recomputed",
)
