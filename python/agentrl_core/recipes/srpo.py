"""SRPO: score a failed rollout by its distance to the group's successful ones (arXiv:2511.15605).

    R = 1 for a success, 0.6 sigmoid(10 (1/2 - d)) for a failure,   A = (R - mean) / std
    d = distance of its embedding to the nearest cluster of successes, 0 for the nearest failure and 1 for the furthest

Cluster centres and distances are computed over all rollouts of a task in the batch. Groups solved in fewer than 1 of 10
or more than 9 of 10 rollouts are excluded from the loss. A rollout with an all-zero embedding has no position and
scores 0 even if it succeeded, as in the public code; `SuccessDistance(zero_embedding="keep")` keeps it.

Equations:
    Read: the public code with its guide, the abstract, and a summary by others. The paper's text was not read.

    - C1, centres: `SuccessDistance`, over the draws of a task.
    - C2, distance: `SuccessDistance`.
    - C3, reward: `SuccessDistance`; the factor of 5 cancels in the advantage.
    - C4, filter: `GroupFilter(column="success")`.
    - C5, advantage: `GroupRelative`; its std divides by n - 1. A group of one has advantage 0 here, and its reward in
      the code.
    - C6, loss: `Policy`, with clip ranges 0.2 and 0.28 and one mean over tokens.

Differs:
    - KL: in the paper, according to a summary; none in the scripts and here. `loss.KL` adds it.
    - Order: the code filters groups before it measures distances. Here the rollouts of an excluded group still count in
      the centres and distances of their task, which matters if several groups have the same task.
      `admit=DynamicSampling(Band(at_least=0.1, at_most=0.9), column="reward")` instead of the filter rejects such
      groups earlier, and requests new ones.
    - Task: in the code, a task has several prompts, which start a robot at different positions; here it has one prompt.
      To combine several prompts, give them the name of the task as their domain and use
      `SuccessDistance(group_by="domain")`.

Needs: the facts `embedding.0`, `embedding.1`, ... of trajectories (from a world model or a sentence encoder), and
whether they succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import Clip, Policy
from agentrl_core.operators.success_distance import success_distance
from agentrl_core.select import Band
from agentrl_core.weight import GroupFilter

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SuccessDistance(BatchComponent):
    """Give failures partial credit by their distance to the successes of their task.

    score = 1 for a success; at_most * sigmoid(slope * (0.5 - d)) for a failure. The draw columns `embedding.0`,
    `embedding.1`, ... describe the course of a trajectory. d is 0 for the failure of the task that is nearest to a
    centre of its successes and 1 for the furthest (0.5 if all are equally near). Centres are the means of clusters of
    successes (DBSCAN, on standardised embeddings), or the mean of all successes if there is no cluster. Failures of a
    task without a success score 0. Source: SRPO, arXiv:2511.15605.

    Args:
        radius: largest distance between neighbours, in standard deviations.
        members_at_least: smallest number of neighbouring successes that form a cluster.
        at_most: upper limit of a failure's score, which is always below it.
        slope: how fast the score falls with the distance.
        zero_embedding: `invalid`: a draw with an all-zero embedding has no embedding: it scores 0, even if it
            succeeded, and does not count as a success for other draws (the public code); `keep`: zero is an embedding
            like any other.
        group_by: key columns; draws with equal keys have the same task.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.srpo import SuccessDistance
        >>> SuccessDistance().needs
        (draw('embedding.0'), draw('success'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("embedding.0"), draw("success"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    radius: float = option(0.5, above=0)
    members_at_least: int = option(2, at_least=1)
    at_most: float = option(0.6, at_least=0, at_most=1)
    slope: float = option(10.0, at_least=0)
    zero_embedding: Literal["invalid", "keep"] = "invalid"
    group_by: str = option("task_id", filled=True)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        embeddings = rows.matrix("embedding")
        known = rows.is_known("success")
        known &= embeddings.any(axis=1) if self.zero_embedding == "invalid" else True
        scores = success_distance(
            embeddings,
            rows.flags("success"),
            rows.keys(self.group_by),
            radius=self.radius,
            members_at_least=self.members_at_least,
            at_most=self.at_most,
            slope=self.slope,
            valid=known,
        )
        return rows.write(score=np.where(rows.is_known("success"), scores, np.nan))


SRPO = Recipe(
    name="srpo",
    source="arXiv:2511.15605",
    reward=SuccessDistance(),
    advantage=GroupRelative(),
    weight=GroupFilter(column="success", band=Band(at_least=0.1, at_most=0.9)),
    loss=Policy(clip=Clip(0.2, 0.28)),
    minibatches=16,
)
