"""Reductions of groups, and columns computed within groups: quantiles, ranks, softmax, ranges, extremes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns

Interpolation = Literal["linear", "lower", "higher", "nearest", "midpoint"]


def _read(
    values: object, ids: object, valid: object | None
) -> tuple[NDArray[Any], NDArray[np.uint32], NDArray[np.bool_] | None]:
    column = columns.numbers(values, "values")
    count = len(column)
    return (
        column,
        columns.keys(ids, "ids", length=count, first="values"),
        columns.mask(valid, "valid", length=count, first="values"),
    )


def quantile(
    values: object,
    ids: object,
    q: float,
    *,
    interpolation: Interpolation = "linear",
    valid: object | None = None,
) -> NDArray[np.float64]:
    """Quantile of each group, by the definitions of `numpy.quantile`.

    Args:
        values: n numbers.
        ids: n group ids, whole numbers or strings.
        q: 0 (least) to 1 (most); 0.5 is the median.
        interpolation: rule for a quantile between two values.
        valid: n booleans; rows that are False do not count.

    Returns:
        `float64[G]`, groups in order of first appearance; NaN for a group without valid rows.

    Raises:
        InvalidInputError: lengths differ, a valid value is not finite, or an option is not possible.

    Example:
        >>> from agentrl_core import group
        >>> group.quantile([1.0, 2.0, 4.0, 9.0], ["a", "a", "a", "b"], 0.5).tolist()
        [2.0, 9.0]
    """
    column, groups, mask = _read(values, ids, valid)
    return _core.group.quantile(column, groups, q, interpolation=interpolation, valid=mask)


def log_mean_exp(
    values: object, ids: object, *, temperature: float = 1.0, valid: object | None = None
) -> NDArray[np.float64]:
    """Return a soft maximum of each group, between mean and maximum: temperature * ln(mean of exp(x / temperature)).

    Args:
        values: n numbers.
        ids: n group ids.
        temperature: at least 0; 0 gives the mean.
        valid: n booleans; rows that are False do not count.

    Returns:
        `float64[G]`; NaN for a group without valid rows.

    Raises:
        InvalidInputError: lengths differ, a valid value is not finite, or the temperature is negative.

    Example:
        >>> from agentrl_core.operators.group.reduce import log_mean_exp
        >>> log_mean_exp([0.0, 0.0, 2.0], ["a", "a", "b"]).tolist()
        [0.0, 2.0]
    """
    column, groups, mask = _read(values, ids, valid)
    return _core.group.log_mean_exp(column, groups, temperature, valid=mask)


def arg_extreme(values: object, ids: object, *, largest: bool = True, valid: object | None = None) -> NDArray[np.int64]:
    """Return the first row of each group that attains its largest (or smallest) value.

    Args:
        values: n numbers.
        ids: n group ids.
        largest: whether to find the largest value, otherwise the smallest.
        valid: n booleans; rows that are False do not count.

    Returns:
        `int64[G]` row numbers; -1 for a group without valid rows.

    Raises:
        InvalidInputError: lengths differ, or a valid value is not finite.

    Example:
        >>> from agentrl_core.operators.group.reduce import arg_extreme
        >>> arg_extreme([1.0, 3.0, 3.0, 2.0], ["a", "a", "a", "b"]).tolist()
        [1, 3]
    """
    column, groups, mask = _read(values, ids, valid)
    return _core.group.arg_extreme(column, groups, largest, valid=mask)


def rank(values: object, ids: object, *, valid: object | None = None) -> NDArray[Any]:
    """Rank of each value in its group in ascending order, from 0; ties: the earlier row comes first.

    Args:
        values: n numbers.
        ids: n group ids.
        valid: n booleans; rows that are False do not count and get 0.

    Returns:
        Integers as `float32[n]` for float32 values, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or a valid value is not finite.

    Example:
        >>> from agentrl_core import group
        >>> group.rank([5.0, 1.0, 5.0], [0, 0, 0]).tolist()
        [1.0, 0.0, 2.0]
    """
    column, groups, mask = _read(values, ids, valid)
    return _core.group.map(column, groups, "rank", valid=mask)


def softmax(values: object, ids: object, *, temperature: float = 1.0, valid: object | None = None) -> NDArray[Any]:
    """Positive weights that sum to 1 in each group, larger for larger values: exp(x / temperature) over their sum.

    Args:
        values: n numbers.
        ids: n group ids.
        temperature: above 0.
        valid: n booleans; rows that are False do not count and get 0.

    Returns:
        `float32[n]` for float32 values, else `float64[n]`; each group's valid rows add up to 1.

    Raises:
        InvalidInputError: lengths differ, a valid value is not finite, or the temperature is not above 0.

    Example:
        >>> from agentrl_core import group
        >>> group.softmax([2.0, 2.0, 7.0], ["a", "a", "b"]).tolist()
        [0.5, 0.5, 1.0]
    """
    column, groups, mask = _read(values, ids, valid)
    return _core.group.map(column, groups, "softmax", temperature=temperature, valid=mask)


def min_max(
    values: object, ids: object, *, eps: float = 0.0, constant: float = 0.0, valid: object | None = None
) -> NDArray[Any]:
    """Scale the values of each group to the range from 0 to 1: (x - least) / (most - least + eps).

    Args:
        values: n numbers.
        ids: n group ids.
        eps: at least 0.
        constant: result for groups of equal values.
        valid: n booleans; rows that are False do not count and get 0.

    Returns:
        `float32[n]` for float32 values, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid value is not finite, or an option is not possible.

    Example:
        >>> from agentrl_core import group
        >>> group.min_max([1.0, 3.0, 2.0], [0, 0, 0]).tolist()
        [0.0, 1.0, 0.5]
    """
    column, groups, mask = _read(values, ids, valid)
    return _core.group.map(column, groups, "min_max", eps=eps, constant=constant, valid=mask)


def mean_one(values: object, ids: object, *, valid: object | None = None) -> NDArray[Any]:
    """Scale weights to mean 1 in each group: x / mean(x of the group). Weights that are all 0 become 1.

    Args:
        values: n numbers of at least 0.
        ids: n group ids.
        valid: n booleans; rows that are False do not count and get 0.

    Returns:
        `float32[n]` for float32 values, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or a valid value is negative or not finite.

    Example:
        >>> from agentrl_core import group
        >>> group.mean_one([1.0, 3.0], [0, 0]).tolist()
        [0.5, 1.5]
    """
    column, groups, mask = _read(values, ids, valid)
    return _core.group.map(column, groups, "mean_one", valid=mask)
