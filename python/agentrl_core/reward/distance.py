"""Partial credit for failures by their distance to successes of the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.operators import columns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class SuccessDistance(BatchComponent):
    """Gives failures partial credit by how near they came to a success of their group.

    score = 1 of a success; at_most * sigmoid(slope * (0.5 - d)) of a failure. The draw columns `embedding.0`,
    `embedding.1`, ... say where a trajectory went. d is 0 for the failure of the group that came nearest to a centre of
    its successes and 1 for the furthest (0.5 if all are equally near); centres are the means of clusters of successes
    (DBSCAN, on standardised embeddings), or of all where there is no cluster. Failures of a group without a success
    score 0. Source: SRPO, arXiv:2511.15605.

    Args:
        radius: successes at most this far apart, in standard deviations, are neighbours.
        members_at_least: so many neighbours make a cluster.
        at_most: failures score less than this.
        slope: how fast the score falls with the distance.
        zero_embedding: a draw whose embedding is all zero has none: it scores 0, even if it succeeded, and is no
            success for the others (`invalid`, the public code); `keep`: zero is a place like any other.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import SuccessDistance
        >>> SuccessDistance().needs
        (draw('embedding.0'), draw('success'), draw('group_id'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("embedding.0"), draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    radius: float = option(0.5, above=0)
    members_at_least: int = option(2, at_least=1)
    at_most: float = option(0.6, at_least=0, at_most=1)
    slope: float = option(10.0, at_least=0)
    zero_embedding: Literal["invalid", "keep"] = "invalid"

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        embeddings = rows.matrix("embedding")
        known = rows.is_known("success")
        known &= embeddings.any(axis=1) if self.zero_embedding == "invalid" else True
        scores = success_distance(
            embeddings,
            rows.flags("success"),
            rows.keys("group_id"),
            radius=self.radius,
            members_at_least=self.members_at_least,
            at_most=self.at_most,
            slope=self.slope,
            valid=known,
        )
        return rows.write(score=np.where(rows.is_known("success"), scores, np.nan))


def success_distance(
    embeddings: object,
    success: object,
    group_ids: object,
    *,
    radius: float = 0.5,
    members_at_least: int = 2,
    at_most: float = 0.6,
    slope: float = 10.0,
    valid: object | None = None,
) -> NDArray[np.float64]:
    """Partial credit for failures by their distance to successes of the group. From SRPO, arXiv:2511.15605.

    1 for a success; for a failure at_most * sigmoid(slope * (0.5 - d)), where d is its Euclidean distance to the
    nearest centre of the successes, from 0 for the group's nearest failure to 1 for its furthest. Centres are those of
    clusters of standardised successes (DBSCAN), or the mean of all successes if there are no clusters.

    Args:
        embeddings: `[n, width]` numbers.
        success: n booleans.
        group_ids: n group ids.
        radius: radius of a neighbourhood, in standard deviations.
        members_at_least: smallest number of members of a cluster, including the point itself.
        at_most: upper limit of a failure's reward.
        slope: at least 0.
        valid: n booleans; rows that are False may hold anything, are ignored and get 0. None: all rows are valid.

    Returns:
        `float64[n]`; failures of a group without a success get 0.

    Raises:
        InvalidInputError: shapes do not fit, a valid number is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core import reward
        >>> reward.success_distance([[0.0], [1.0], [3.0]], [True, False, False], [7, 7, 7]).round(3).tolist()
        [1.0, 0.596, 0.004]
    """
    places = columns.numbers(embeddings, "embeddings", dimensions=(2,)).astype(np.float64)
    count, width = places.shape
    won = columns.flags(success, "success", length=count)
    groups = columns.keys(group_ids, "group_ids", length=count)
    mask = columns.mask(valid, "valid", length=count)
    if mask is not None:
        # Invalid rows form a group without a success.
        places = np.where(mask[:, None], places, 0.0)
        won = won & mask
        groups = columns.keys(np.where(mask, groups.astype(np.int64), -1), "group_ids")
    return _core.reward.success_distance(
        places.ravel(),
        width,
        won,
        groups,
        radius=radius,
        members_at_least=members_at_least,
        at_most=at_most,
        slope=slope,
    )
