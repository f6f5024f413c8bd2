"""Tests of paired runs: the same seeds under two systems."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.stats.intervals import as_floats, bootstrap


class PairedDifference(NamedTuple):
    """Difference of two systems on the same seeds.

    Attributes:
        mean: mean of first minus second.
        low: lower end of the bootstrap interval of the mean.
        high: upper end of the interval.
        p_value: two-sided p-value of the sign-flip test.
        pairs: number of pairs.
    """

    mean: float
    low: float
    high: float
    p_value: float
    pairs: int


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 100_000,
    seed: int = 0,
) -> PairedDifference:
    """Compare two systems whose runs are paired, such as by seed and warm start.

    The sign-flip test asks how often the mean difference would be as far from 0 if each pair's sign were a coin flip.
    Up to 20 pairs all flips are counted, so the smallest p-value of n pairs is `2 / 2**n`: 0.06 for 5 pairs.

    Args:
        first: `[pairs]`, a score for each pair, finite.
        second: `[pairs]`, in the same order.
        confidence: confidence of the bootstrap interval of the mean difference.
        resamples: number of resamples of that interval, and of random flips if there are more than 20 pairs.
        seed: seed of resamples and flips.

    Raises:
        InvalidInputError: a score is not finite, or the two columns differ in length.

    Example:
        >>> from agentrl_core import stats
        >>> found = stats.paired_difference([0.9, 0.8, 0.7], [0.5, 0.6, 0.6])
        >>> round(found.mean, 3), found.p_value, found.pairs
        (0.233, 0.25, 3)
    """
    ours, theirs = _column("first", first), _column("second", second)
    if len(ours) != len(theirs):
        raise InvalidInputError(
            f"second: it has {len(theirs)} scores, and first has {len(ours)}; give one of each for every pair"
        )
    differences = ours - theirs
    estimate = bootstrap(differences, "mean", confidence=confidence, resamples=resamples, seed=seed)
    p_value = _core.stats.sign_flip(differences, resamples, seed)
    return PairedDifference(*estimate, p_value, len(differences))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return p-values corrected for multiple tests by Holm's method.

    In ascending order, `p[i]` becomes the maximum over `j <= i` of `min(1, (n - j) * p[j])`.

    Args:
        p_values: `[n]`, each from 0 to 1.

    Returns:
        `float64[n]`, in the order given. A hypothesis is rejected at level alpha if its value is at most alpha.

    Raises:
        InvalidInputError: a value is not a probability.

    Example:
        >>> from agentrl_core import stats
        >>> stats.holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    values = as_floats("p_values", p_values, "give a list of numbers from 0 to 1")
    if values.ndim != 1:
        raise InvalidInputError(f"p_values has shape {values.shape}; give a one-dimensional list of numbers")
    outside = np.flatnonzero(~((values >= 0) & (values <= 1)))
    if len(outside):
        raise InvalidInputError(f"p_values[{outside[0]}] is {values[outside[0]]}; give numbers from 0 to 1")
    order = np.argsort(values, kind="stable")
    scaled = np.minimum(values[order] * np.arange(len(values), 0, -1), 1.0)
    corrected = np.empty_like(values)
    corrected[order] = np.maximum.accumulate(scaled)
    return corrected


def detectable_effect(
    pairs: int, *, alpha: float = 0.05, power: float = 0.8, simulations: int = 2_000, seed: int = 0
) -> float:
    """Return the smallest mean difference, in standard deviations, that the sign-flip test finds with the given power.

    Multiply it by the standard deviation of the differences of a pilot. It is found by simulating normal differences,
    to 0.001, with the same draws for every effect.

    Args:
        pairs: 2 to 20.
        alpha: level of the two-sided test.
        power: probability with which the effect is found.
        simulations: number of simulated experiments.
        seed: seed of the simulation.

    Returns:
        The effect; infinity if the test cannot reject at this level with so few pairs.

    Raises:
        InvalidInputError: an argument is out of range.

    Example:
        >>> from agentrl_core import stats
        >>> stats.detectable_effect(5), round(stats.detectable_effect(10), 1)
        (inf, 1.0)
    """
    return _core.stats.detectable_effect(pairs, alpha, power, simulations, seed)


def _column(name: str, scores: ArrayLike) -> NDArray[np.float64]:
    column = as_floats(name, scores, "give a list of one score for each pair")
    if column.ndim != 1 or not column.size:
        raise InvalidInputError(f"{name} has shape {column.shape}; give a list of one score for each pair")
    if not np.isfinite(column).all():
        place = int(np.flatnonzero(~np.isfinite(column))[0])
        raise InvalidInputError(
            f"{name}: the score of pair {place} is {column[place]}; leave the pair out, or score the run that failed"
        )
    return column
