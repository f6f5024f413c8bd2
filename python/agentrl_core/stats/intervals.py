"""Bootstrap intervals of scores over runs."""

from __future__ import annotations

from numbers import Real
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _core
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
    limits = np.asarray(thresholds, np.float64)
    if limits.ndim != 1 or not np.isfinite(limits).all():
        shape = f" has shape {limits.shape}"
        odd = next((f"[{i}] is {limit}" for i, limit in enumerate(limits.flat) if not np.isfinite(limit)), shape)
        raise InvalidInputError(f"thresholds{odd}; give a list of finite numbers, such as [0, 0.5]")
    return [
        bootstrap(table > limit, "mean", confidence=confidence, resamples=resamples, seed=seed)
        for limit in limits.tolist()
    ]


def as_table(name: str, scores: ArrayLike) -> NDArray[np.float64]:
    """Return scores as a table `[runs, tasks]`.

    Raises:
        InvalidInputError: the scores are not a list or table with at least one run and one task.
    """
    try:
        table = np.ascontiguousarray(scores, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{odd_score(scores, name)}; give numbers [runs, tasks], with the same tasks in every run"
        ) from error
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or not table.size:
        raise InvalidInputError(f"{name} has shape {np.shape(scores)}; give [runs, tasks] with at least one of each")
    return table


def odd_score(scores: object, name: str) -> str:
    """Return the name and value of the first score that is not a number, or of the first run of another length."""
    runs = scores if isinstance(scores, (list, tuple)) else ()
    for run, row in enumerate(runs):
        if isinstance(row, (list, tuple)) and isinstance(runs[0], (list, tuple)) and len(row) != len(runs[0]):
            return f"{name}[{run}] has {len(row)} tasks, but {name}[0] has {len(runs[0])}"
        for task, score in enumerate(row if isinstance(row, (list, tuple)) else ()):
            if not isinstance(score, Real):
                return f"{name}[{run}][{task}] is {score!r:.40}"
        if not isinstance(row, (list, tuple, Real)):
            return f"{name}[{run}] is {row!r:.40}"
    return f"{name} is {scores!r:.80}"


def check_confidence(confidence: float, resamples: int) -> None:
    """Check the confidence and the number of resamples of an interval.

    Raises:
        InvalidInputError: `confidence` is not between 0 and 1, or there are no resamples.
    """
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence: {confidence} is not between 0 and 1; give a share such as 0.95")
    if resamples < 1:
        raise InvalidInputError(f"resamples: {resamples} is too few; give at least 1, such as 10000")


def interval(value: float, resampled: NDArray[np.float64], *, confidence: float) -> Estimate:
    """Return an estimate whose interval is bounded by percentiles of the resampled values."""
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, float(low), float(high))
