"""Partial credit for failures that came near a success of their group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class SuccessDistance(BatchComponent):
    """score = 1 of a success; ceiling * sigmoid(slope * (0.5 - d)) of a failure, d its distance to the successes.

    The draw columns `embedding.0`, `embedding.1`, ... say where a trajectory went. d is 0 for the failure of the group
    that came nearest to a centre of its successes and 1 for the furthest (0.5 if all are equally near); centres are the
    means of clusters of successes (DBSCAN, on standardised embeddings), or of all where there is no cluster. Failures
    of a group without a success score 0. Source: SRPO, arXiv:2511.15605.

    Args:
        radius: successes at most this far apart, in standard deviations, are neighbours; above 0.
        min_samples: so many neighbours make a cluster, at least 1.
        ceiling: failures score less than this.
        slope: how fast the score falls with the distance.
        zero_embedding: a draw whose embedding is all zero has none: it scores 0, even if it succeeded, and is no
            success for the others (`invalid`, the public code); `keep`: zero is a place like any other.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import SuccessDistance
        >>> SuccessDistance().needs
        (('draw', 'embedding.0'), ('draw', 'success'), ('draw', 'group_id'))
    """

    phase: ClassVar[str] = "reward"

    radius: float = 0.5
    min_samples: int = 2
    ceiling: float = 0.6
    slope: float = 10.0
    zero_embedding: Literal["invalid", "keep"] = "invalid"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.radius > 0.0, "radius", "give a number above 0")
        self.require(self.min_samples >= 1, "min_samples", "give a number of at least 1")
        self.require(0.0 <= self.ceiling <= 1.0, "ceiling", "give a number from 0 to 1")
        self.require(self.slope >= 0.0, "slope", "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Embedding, success and group of each draw."""
        return needed("draw", "embedding.0", "success", "group_id")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score of each draw."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        embeddings = rows.matrix("embedding")
        known = embeddings.any(axis=1) if self.zero_embedding == "invalid" else np.ones(len(rows), dtype=np.bool_)
        score = np.zeros(len(rows))
        score[known] = _core.reward_success_distance(
            np.ascontiguousarray(embeddings[known]).ravel(),
            embeddings.shape[1],
            rows.flags("success")[known],
            keys.dense(rows.keys("group_id")[known]),
            radius=self.radius,
            min_samples=self.min_samples,
            ceiling=self.ceiling,
            slope=self.slope,
        )
        return rows.write(score=score)
