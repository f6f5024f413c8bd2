"""Partial credit for failures by their distance to successes of the group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


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
        >>> from agentrl_core.operators.success_distance import success_distance
        >>> success_distance([[0.0], [1.0], [3.0]], [True, False, False], [7, 7, 7]).round(3).tolist()
        [1.0, 0.596, 0.004]
    """
    places = columns.numbers(embeddings, "embeddings", dimensions=(2,)).astype(np.float64)
    count, width = places.shape
    won = columns.flags(success, "success", length=count, first="embeddings")
    groups = columns.keys(group_ids, "group_ids", length=count, first="embeddings")
    mask = columns.mask(valid, "valid", length=count, first="embeddings")
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
