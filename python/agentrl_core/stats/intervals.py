"""Bootstrap intervals of scores over runs, performance profiles, and the probability of improvement."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _core
from agentrl_core._util.wrong_values import first_wrong, is_number, shown
from agentrl_core.exceptions import InvalidInputError

Statistic = Literal["iqm", "mean", "median", "optimality_gap"]


class Estimate(NamedTuple):
    """An estimate of a statistic with its confidence interval.

    Attributes:
        value: statistic of the scores themselves.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    value: float
    low: float
    high: float


def bootstrap(
    scores: ArrayLike,
    statistic: Statistic = "iqm",
    *,
    threshold: float = 1.0,
    confidence: float = 0.95,
    resamples: int = 100_000,
    seed: int = 0,
) -> Estimate:
    """Return a statistic of scores with its stratified bootstrap interval (percentiles).

    The runs of each task are resampled with replacement, separately for each task. The same seed gives the same
    interval on any machine and number of threads.

    Args:
        scores: `[runs, tasks]`, finite; `[runs]` is one task.
        statistic: "iqm", the mean of the middle half of all scores; "mean"; "median", over tasks, of their means;
            "optimality_gap", the mean of `threshold - min(score, threshold)`.
        threshold: the score from which a task counts as solved; only "optimality_gap" reads it.
        confidence: share of resamples inside the interval.
        resamples: number of resamples.
        seed: of the resamples.

    Raises:
        InvalidInputError: a score is not finite, or an argument is out of range.

    Example:
        >>> from agentrl_core import stats
        >>> scores = [[0.1, 0.9], [0.3, 1.0], [0.2, 0.7], [0.4, 0.8]]  # four runs of two tasks
        >>> estimate = stats.bootstrap(scores, "mean")
        >>> round(estimate.value, 3), round(estimate.low, 2), round(estimate.high, 2)
        (0.55, 0.47, 0.62)
    """
    table = as_table("scores", scores)
    if not is_number(threshold):
        raise InvalidInputError(f"threshold is {shown(threshold)}; give a finite number, such as 1.0")
    flat, tasks = table.ravel(), table.shape[1]
    value = _core.stats.statistic(flat, tasks, statistic, threshold)
    check_confidence(confidence, resamples)
    return interval(
        value, _core.stats.bootstrap(flat, tasks, statistic, threshold, resamples, seed), confidence=confidence
    )


def probability_of_improvement(
    first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Return the probability that a run of `first` scores higher than a run of `second` on the same task.

    It is the mean over tasks of the share of pairs of runs in which `first` is higher; ties count as half. 0.5 is no
    difference.

    Args:
        first: `[runs, tasks]`, finite; `[runs]` is one task.
        second: `[runs, tasks]`, other runs on the same tasks.
        confidence: share of resamples inside the interval.
        resamples: number of resamples of the runs of both.
        seed: of the resamples.

    Raises:
        InvalidInputError: a score is not finite, the tables have different tasks, or an argument is out of range.

    Example:
        >>> from agentrl_core import stats
        >>> round(stats.probability_of_improvement([0.5, 0.9, 0.7], [0.5, 0.1, 0.6]).value, 3)
        0.833
    """
    ours, theirs = as_table("first", first), as_table("second", second)
    if ours.shape[1] != theirs.shape[1]:
        raise InvalidInputError(
            f"second: it has {theirs.shape[1]} tasks, and first has {ours.shape[1]}; give the same tasks in the same "
            "order"
        )
    flat, other, tasks = ours.ravel(), theirs.ravel(), ours.shape[1]
    check_confidence(confidence, resamples)
    return interval(
        _core.stats.improvement(flat, other, tasks),
        _core.stats.improvements(flat, other, tasks, resamples, seed),
        confidence=confidence,
    )


def performance_profile(
    scores: ArrayLike,
    thresholds: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> list[Estimate]:
    """Return the share of scores above each threshold, with intervals.

    Args:
        scores: `[runs, tasks]`, finite; `[runs]` is one task.
        thresholds: `[n]`, finite.
        confidence: share of resamples inside each interval (of each threshold by itself).
        resamples: number of resamples.
        seed: of the resamples, which all thresholds share.

    Returns:
        An estimate for each threshold.

    Raises:
        InvalidInputError: a score or threshold is not finite, or an argument is out of range.

    Example:
        >>> from agentrl_core import stats
        >>> [estimate.value for estimate in stats.performance_profile([0.1, 0.3, 0.9, 1.0], [0.0, 0.3, 0.95])]
        [1.0, 0.5, 0.25]
    """
    table = as_table("scores", scores)
    remedy = "give a list of finite numbers, such as [0, 0.5]"
    limits = as_floats("thresholds", thresholds, remedy)
    if limits.ndim != 1:
        raise InvalidInputError(f"thresholds has shape {limits.shape}; {remedy}")
    _check_finite("thresholds", limits, remedy)
    return [
        bootstrap(table > limit, "mean", confidence=confidence, resamples=resamples, seed=seed)
        for limit in limits.tolist()
    ]


def as_table(name: str, scores: ArrayLike) -> NDArray[np.float64]:
    """Return scores as a table `[runs, tasks]`.

    Raises:
        InvalidInputError: the scores are not a list or table with at least one run and one task, or not finite.
    """
    table = as_floats(name, scores, "give numbers [runs, tasks], with the same tasks in every run")
    _check_finite(name, table, "give finite scores")
    if table.ndim < 2:
        table = table.reshape(-1, 1)
    if table.ndim != 2 or not table.size:
        raise InvalidInputError(f"{name} has shape {np.shape(scores)}; give [runs, tasks] with at least one of each")
    return np.ascontiguousarray(table)


def as_floats(name: str, scores: ArrayLike, remedy: str) -> NDArray[np.float64]:
    """Return scores as an array of `float64`.

    Raises:
        InvalidInputError: a score is not a number, or is too large, or the runs differ in length.
    """
    try:
        return np.asarray(scores, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{_odd_score(scores, name)}; {remedy}") from error


def _check_finite(name: str, array: NDArray[np.float64], remedy: str) -> None:
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0]
        index = "".join(f"[{at}]" for at in place)
        raise InvalidInputError(f"{name}{index} is {array[tuple(place)]}; {remedy}")


def _odd_score(scores: object, name: str) -> str:
    """Return the name and value of the first score that is not a float, or of the first run of another length."""
    runs = _entries(scores)
    if runs is None:
        return f"{name} is {shown(scores)}"
    for run, row in enumerate(runs):
        tasks, first = _entries(row), _entries(runs[0])
        if tasks is None:
            if first is not None or not _is_float(row):
                return f"{name}[{run}] is {shown(row)}"
        elif first is None:
            return f"{name}[{run}] has {len(tasks)} tasks, but {name}[0] is {shown(runs[0])}"
        elif len(tasks) != len(first):
            return f"{name}[{run}] has {len(tasks)} tasks, but {name}[0] has {len(first)}"
        elif (task := first_wrong(tasks, _is_float)) is not None:
            return f"{name}[{run}][{task}] is {shown(tasks[task])}"
    return f"{name} is {shown(scores)}"


def _entries(scores: object) -> list[object] | None:
    """Return the entries of a list, tuple or array; None for any other value."""
    is_array = isinstance(scores, np.ndarray) and scores.ndim > 0
    return list(cast("Sequence[object]", scores)) if is_array or isinstance(scores, (list, tuple)) else None


def _is_float(score: object) -> bool:
    try:
        return np.ndim(np.float64(score)) == 0  # type: ignore[arg-type] # any value of the caller
    except (TypeError, ValueError, OverflowError):
        return False


def check_confidence(confidence: float, resamples: int) -> None:
    """Check the confidence and the number of resamples of an interval.

    Raises:
        InvalidInputError: `confidence` is not between 0 and 1, or there are no resamples.
    """
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise InvalidInputError(f"confidence is {shown(confidence)}; give a share between 0 and 1, such as 0.95")
    if not isinstance(resamples, Integral) or resamples < 1:
        raise InvalidInputError(f"resamples is {shown(resamples)}; give a whole number of at least 1, such as 10000")


def interval(value: float, resampled: NDArray[np.float64], *, confidence: float) -> Estimate:
    """Return an estimate whose interval is bounded by percentiles of the resampled values."""
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, float(low), float(high))
