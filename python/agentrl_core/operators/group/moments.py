"""Sums and statistics by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of G groups, in order of first appearance: `statistics.mean[keys.dense(ids)]` gives each row its own.

    Args:
        count: `uint64[G]`, votes.
        weight: `float64[G]`, the sum of their weights; the count without weights.
        mean: `float64[G]`; NaN for a group without votes.
        std: `float64[G]`, sqrt(sum w (x - mean)^2 / (sum w - ddof)); NaN if the divisor is not above 0.
        least: `float64[G]`; NaN for a group without votes.
        most: `float64[G]`; NaN for a group without votes.

    Example:
        >>> from agentrl_core import group
        >>> group.statistics([1.0, 3.0, 5.0], ["a", "a", "b"]).most.tolist()
        [3.0, 5.0]
    """

    count: NDArray[np.uint64]
    weight: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    least: NDArray[np.float64]
    most: NDArray[np.float64]


def statistics(
    values: object,
    ids: object,
    *,
    ddof: int = 1,
    weights: object | None = None,
    voter_ids: object | None = None,
    valid: object | None = None,
) -> GroupStatistics:
    """Count, mean, standard deviation and range of each group, bit-identical for any order of the rows.

    Args:
        values: n numbers.
        ids: n group ids, whole numbers or strings.
        ddof: the variance divides by (sum of weights - ddof); 0 or 1.
        weights: n numbers of at least 0: votes of each row.
        voter_ids: n ids: rows of a group with the same voter id have one vote, their mean. None: each row is a vote.
        valid: n booleans; rows that are False do not vote. None: all do.

    Returns:
        One column per statistic.

    Raises:
        InvalidInputError: lengths differ, a valid value is not finite, or a weight is negative.

    Example:
        >>> from agentrl_core import group
        >>> statistics = group.statistics([1.0, 3.0, 8.0], ["a", "a", "b"], ddof=0)
        >>> statistics.count.tolist(), statistics.mean.tolist(), statistics.std.tolist()
        ([2, 1], [2.0, 8.0], [1.0, 0.0])
    """
    column = columns.numbers(values, "values")
    count = len(column)
    return GroupStatistics(
        *_core.group.statistics(
            column,
            columns.keys(ids, "ids", length=count, first="values"),
            ddof=ddof,
            weights=columns.optional_numbers(weights, "weights", length=count, first="values"),
            units=None if voter_ids is None else columns.keys(voter_ids, "voter_ids", length=count, first="values"),
            valid=columns.mask(valid, "valid", length=count, first="values"),
        )
    )


def sums(values: object, ids: object) -> NDArray[np.float64]:
    """Sum the values of each group with 106 bits and round once: bit-identical for any order of the rows.

    Args:
        values: n finite numbers.
        ids: n group ids, whole numbers or strings.

    Returns:
        `float64[G]`, groups in order of first appearance.

    Raises:
        InvalidInputError: lengths differ, a value is not finite, or a sum is too large for a float.

    Example:
        >>> from agentrl_core import group
        >>> group.sums([1e16, 1.0, -1e16, 5.0], ["a", "a", "a", "b"]).tolist()
        [1.0, 5.0]
    """
    column = columns.numbers(values, "values")
    groups = columns.keys(ids, "ids", length=len(column), first="values")
    return _core.group.sums(column, groups, int(groups.max()) + 1 if len(groups) else 0)
