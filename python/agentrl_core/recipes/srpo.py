"""SRPO: a failure is paid by how near it came to the group's own successes (arXiv:2511.15605).

    R = 1 of a success, 0.6 sigmoid(10 (1/2 - d)) of a failure,   A = (R - mean) / std
    d = distance of its embedding to the nearest cluster of successes, 0 for the nearest failure and 1 for the furthest

Centres and distances are those of all rollouts of a task in the batch. Groups solved in fewer than 1 of 10 or more than
9 of 10 rollouts leave the loss. An embedding of zeros has no place and scores 0 even where it succeeded, as in the
public code; `SuccessDistance(zero_embedding="keep")` keeps it.

Equations:
    Read: the public code with its guide, the abstract, and a summary by others. The paper's text was not read.

    - C1, centres: `SuccessDistance`, over the draws of a task.
    - C2, distance: `SuccessDistance`.
    - C3, reward: `SuccessDistance`; the factor of 5 cancels in the advantage.
    - C4, filter: `GroupFilter(column="success")`.
    - C5, advantage: `GroupRelative`, std of n - 1; a group of one is 0 here, and its reward in the code.
    - C6, loss: `Policy`, clip ranges 0.2 and 0.28, one token mean.

Differs:
    - KL: in the paper, by a summary; none in the scripts and here. `loss.KL` adds it.
    - Order: the code filters groups before it measures distances; here the rollouts of a group that leaves the loss are
      places of its task, which matters if several groups have one task. `admit=DynamicSampling(Band(at_least=0.1,
      at_most=0.9), column="reward")` in the place of the filter rejects them before, and asks for others.
    - Task: of several prompts in the code, which start a robot elsewhere; one prompt here. With the name of such a task
      as domain of its prompts it is `SuccessDistance(group_by="domain")`.

Needs: the facts `embedding.0`, `embedding.1`, ... of trajectories (of a world model, or a sentence encoder), and which
succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward.distance import success_distance
from agentrl_core.select import Band
from agentrl_core.weight import GroupFilter

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SuccessDistance(BatchComponent):
    """Gives failures partial credit by how near they came to a success of their task.

    score = 1 of a success; at_most * sigmoid(slope * (0.5 - d)) of a failure. The draw columns `embedding.0`,
    `embedding.1`, ... describe where a trajectory went. d is 0 for the failure of the task that came nearest to a
    centre of its successes and 1 for the furthest (0.5 if all are equally near); centres are the means of clusters of
    successes (DBSCAN, on standardised embeddings), or of all where there is no cluster. Failures of a task without a
    success score 0. Source: SRPO, arXiv:2511.15605.

    Args:
        radius: successes at most this far apart, in standard deviations, are neighbours.
        members_at_least: so many neighbours make a cluster.
        at_most: failures score less than this.
        slope: how fast the score falls with the distance.
        zero_embedding: a draw whose embedding is all zero has none: it scores 0, even if it succeeded, and is no
            success for the others (`invalid`, the public code); `keep`: zero is a place like any other.
        group_by: key columns whose draws are of one task.

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
