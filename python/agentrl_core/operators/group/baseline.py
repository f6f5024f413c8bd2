"""Baselines of groups, from their own rewards, a prior, or the past.

Each returns numbers to subtract: `normalise(..., center="baseline", baseline=...)`. Functions with state are pure: they
take a state and return the next one. A state is a plain value of dicts, lists and numbers, so it can be stored as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns


def shrunk_mean(
    values: object,
    ids: object,
    prior: object,
    *,
    variance: float,
    leave_one_out: bool = False,
    valid: object | None = None,
) -> NDArray[np.float64]:
    """Shrink the group mean towards a prior, as far as noise alone explains their distance.

        d2 = max(0, (mean - prior)^2 - variance / k),  w = d2 / (d2 + variance / k),  b = w * mean + (1 - w) * prior

    with k votes in the group; b = prior if k = 0. From V0.5.

    Args:
        values: n numbers.
        ids: n group ids.
        prior: n numbers, equal for all rows of a group, such as a value model's estimate.
        variance: variance of one value, above 0: at most 1 for rewards -1 and 1, 0.25 for rewards 0 and 1.
        leave_one_out: whether to exclude a row from its own b: mean and k are those of the others.
        valid: n booleans; rows that are False do not vote, and their prior counts as 0.

    Returns:
        `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a value or a prior is not finite, or the variance is not above 0.

    Example:
        >>> from agentrl_core.operators.group.baseline import shrunk_mean
        >>> shrunk_mean([1.0, 1.0, 0.0, 1.0], [0, 0, 1, 1], [0.0, 0.0, 0.5, 0.5], variance=0.25).tolist()
        [0.875, 0.875, 0.5, 0.5]
    """
    column = columns.doubles(values, "values")
    count = len(column)
    return _core.baseline.shrunk_mean(
        column,
        columns.keys(ids, "ids", length=count, first="values"),
        columns.doubles(prior, "prior", length=count, first="values"),
        variance,
        leave_one_out,
        columns.mask(valid, "valid", length=count, first="values"),
    )


def ema_mean(
    state: Mapping[str, float],
    values: object,
    ids: object,
    *,
    decay: float,
    initial: float = 0.0,
    update: Literal["after", "before"] = "after",
    valid: object | None = None,
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Moving mean by key, such as a role or a task: b' = decay * b + (1 - decay) * mean(x of the key).

    Args:
        state: b by key; empty at the start.
        values: n numbers.
        ids: n keys with the same meaning in every batch, whole numbers or strings.
        decay: 0 to 1.
        initial: b of a new key.
        update: `after` returns b and then updates it; `before` updates first and returns b' (as in Vision-Zero's public
            code).
        valid: n booleans; rows that are False do not vote.

    Returns:
        The baseline `float64[n]`, and the next state.

    Raises:
        InvalidInputError: lengths differ, a value is not finite, or an option is not possible.

    Example:
        >>> from agentrl_core.operators.group.baseline import ema_mean
        >>> baseline, state = ema_mean({}, [1.0, 3.0], ["a", "a"], decay=0.5)
        >>> baseline.tolist(), state
        ([0.0, 0.0], {'a': 1.0})
    """
    if not 0.0 <= decay <= 1.0:
        raise InvalidInputError(f"decay is {decay}; give a number from 0 to 1")
    _check_initial(initial)
    if update not in ("after", "before"):
        raise InvalidInputError(f"update is {update!r}; use 'after' or 'before'")
    column = columns.doubles(values, "values")
    groups, names = columns.named(ids, "ids", length=len(column), first="values")
    voted = columns.mask(valid, "valid", length=len(column), first="values")
    return _core.baseline.ema_mean(state, names, column, groups, decay, initial, update == "before", voted)


def running_moments(
    state: Mapping[str, Sequence[float]], values: object, ids: object, *, ddof: int = 1, valid: object | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], dict[str, list[float]]]:
    """Running mean and standard deviation of each key over all visits, with equal weights per visit.

        i = n + 1,  mean' = (n * mean + m) / i,  std'^2 = (n * std^2 + s^2 + (n / i) * (m - mean)^2) / i

    with m and s those of the key's rows in this batch. From DCPO, arXiv:2509.02333 (cumulative statistics).

    Args:
        state: [visits, mean, std] by key; empty at the start.
        values: n numbers.
        ids: n keys with the same meaning in every batch, such as task ids.
        ddof: ddof of s; 0 or 1. A key with one row has s = 0.
        valid: n booleans; rows that are False do not vote.

    Returns:
        `float64[n]` means, `float64[n]` deviations and `int64[n]` visits, including this one; and the next state.

    Raises:
        InvalidInputError: lengths differ, or a value is not finite.

    Example:
        >>> from agentrl_core.operators.group.baseline import running_moments
        >>> _, _, _, state = running_moments({}, [0.0, 2.0], ["a", "a"], ddof=0)
        >>> mean, std, visits, state = running_moments(state, [2.0, 4.0], ["a", "a"], ddof=0)
        >>> mean.tolist(), std.round(6).tolist(), visits.tolist()
        ([2.0, 2.0], [1.414214, 1.414214], [2, 2])
    """
    column = columns.doubles(values, "values")
    groups, names = columns.named(ids, "ids", length=len(column), first="values")
    voted = columns.mask(valid, "valid", length=len(column), first="values")
    return _core.baseline.running_moments(state, names, column, groups, ddof, voted)


def window_quantile(
    state: Sequence[Sequence[float]], values: object, *, capacity: int, q: float = 0.5
) -> tuple[float | None, list[list[float]]]:
    """Quantile of the values of earlier steps in a window, and the window with this step's values added.

    The window holds whole steps. Before a step is added, the oldest are removed until at most `capacity` values remain,
    so the window may exceed it by one step. From SPEAR, arXiv:2509.22601 (the median of group means).

    Args:
        state: the values of each step, oldest first; empty at the start.
        values: this step's numbers, such as the means of its groups.
        capacity: size of the window in values, at least 1.
        q: 0 to 1.

    Returns:
        The quantile (None while the window is empty), and the next state.

    Raises:
        InvalidInputError: a value is not finite, or an option is not possible.

    Example:
        >>> from agentrl_core.operators.group.baseline import window_quantile
        >>> _, state = window_quantile([], [1.0, 3.0], capacity=2)
        >>> window_quantile(state, [9.0], capacity=2)
        (2.0, [[1.0, 3.0], [9.0]])
    """
    if capacity < 1 or not 0.0 <= q <= 1.0:
        problem = f"capacity is {capacity}; give at least 1" if capacity < 1 else f"q is {q}; give a number from 0 to 1"
        raise InvalidInputError(problem)
    column = columns.doubles(values, "values")
    if not _core.columns.is_finite(column):
        odd = int(np.flatnonzero(~np.isfinite(column))[0])
        raise InvalidInputError(f"values[{odd}] is {column[odd]}; give a finite number")
    try:
        window = [[float(value) for value in step] for step in state]
        stored = [value for step in window for value in step]
        known = all(map(math.isfinite, stored))
    except (TypeError, ValueError):
        known = False
    if not known:
        raise InvalidInputError(
            f"state is {state!r:.80}; give the second value that the last call returned, or [] at the start"
        )
    answer = float(np.quantile(stored, q)) if stored else None
    while window and sum(map(len, window)) > capacity:
        window.pop(0)
    return answer, [*window, column.tolist()]


def decayed_beta(
    state: Mapping[str, Sequence[float]],
    successes: object,
    ids: object,
    *,
    decay: object,
    initial: float = 0.5,
    valid: object | None = None,
) -> tuple[NDArray[np.float64], dict[str, list[float]]]:
    """Discounted success rate of each key, and the state with this batch added.

        v = alpha / (alpha + beta);  alpha' = decay * alpha + sum r,  beta' = decay * beta + sum (1 - r)

    From MSSR, arXiv:2512.18215.

    Args:
        state: [alpha, beta] by key; empty at the start.
        successes: n rewards from 0 to 1.
        ids: n keys with the same meaning in every batch, such as task ids.
        decay: 0 to 1; one number, or n, equal for the voting rows of a key.
        initial: v of a new key.
        valid: n booleans; rows that are False do not vote.

    Returns:
        v as `float64[n]`, from before the update; and the next state.

    Raises:
        InvalidInputError: lengths differ, a reward or decay is outside [0, 1], or rows of a key have different decays.

    Example:
        >>> from agentrl_core.operators.group.baseline import decayed_beta
        >>> baseline, state = decayed_beta({"a": [1.0, 3.0]}, [1.0], ["a"], decay=0.5)
        >>> baseline.tolist(), state
        ([0.25], {'a': [1.5, 1.5]})
    """
    _check_initial(initial)
    column = columns.doubles(successes, "successes")
    count = len(column)
    groups, names = columns.named(ids, "ids", length=count, first="successes")
    decays = (
        decay if isinstance(decay, (int, float)) else columns.doubles(decay, "decay", length=count, first="successes")
    )
    voted = columns.mask(valid, "valid", length=count, first="successes")
    return _core.baseline.decayed_beta(state, names, column, groups, decays, initial, voted)


def _check_initial(initial: float | None) -> None:
    if initial is None or not math.isfinite(initial):
        raise InvalidInputError(f"initial is {initial!r}; give a finite number")
