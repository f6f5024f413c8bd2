"""Draws against the probabilities of the formulas: a million draws of each sampler."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.replay.sum_tree import SumTree

DRAWS = 1_000_000


def chi_squared(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("weights", [(1, 2, 5), (1, 1, 1), (100, 1, 1)])
def test_a_memory_draws_without_replacement_in_proportion(weights: tuple[int, int, int]) -> None:
    """P(i, j, k) = w_i / W * w_j / (W - w_i), of rows drawn one by one; six orders, 5 degrees of freedom."""
    ids = np.arange(3 * DRAWS, dtype=np.int64)
    if weights == (1, 1, 1):
        ranks = _core.replay.race(ids, key=11)
    else:
        ranks = _core.replay.race(ids, np.tile(np.asarray(weights, np.float64), DRAWS), key=11)
    orders = np.argsort(ranks.reshape(DRAWS, 3), axis=1)
    counts = np.bincount(orders @ np.array([9, 3, 1]), minlength=27)
    total = sum(weights)
    chances = {
        9 * i + 3 * j + k: Fraction(weights[i], total) * Fraction(weights[j], total - weights[i])
        for i, j, k in permutations(range(3))
    }
    assert sum(chances.values()) == 1
    assert counts.sum() == counts[list(chances)].sum() == DRAWS
    probabilities = np.array([float(chance) for chance in chances.values()])
    assert chi_squared(counts[list(chances)], probabilities) < 37.0  # probability 6e-7


def test_the_rank_of_equal_priorities_is_the_mean_of_theirs() -> None:
    """Priorities 5, 1, 2: ranks 1, 3, 2; first draw with (1, 1/3, 1/2) / (11/6), over a million memories."""
    weights = _core.replay.rank_weights(np.array([5.0, 1.0, 2.0]))
    assert weights.tolist() == pytest.approx([1.0, 1 / 3, 1 / 2])
    ranks = _core.replay.race(np.arange(3 * DRAWS, dtype=np.int64), np.tile(weights, DRAWS), key=5)
    first = np.bincount(ranks.reshape(DRAWS, 3).argmin(axis=1), minlength=3)
    assert chi_squared(first, weights / (11 / 6)) < 29.0  # 2 degrees of freedom, probability 5e-7


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_the_sum_tree_draws_in_proportion(exponent: float) -> None:
    """1 000 rows, 999 degrees of freedom: five standard deviations above the mean are 1 222."""
    priorities = np.arange(1, 1001, dtype=np.float64)
    tree = SumTree(priorities, exponent=exponent)
    tree.update(np.arange(1000)[::2], priorities[::-2])
    priorities[::2] = priorities[::-2].copy()
    powers = priorities**exponent
    probabilities = powers / powers.sum()
    np.testing.assert_allclose(tree.probabilities(np.arange(1000)), probabilities, rtol=1e-12)
    counts = np.bincount(tree.sample(DRAWS, key=3, stratified=False), minlength=1000)
    assert chi_squared(counts, probabilities) < 1222.0
    # One draw of each stratum: a row has the draws of the strata in it, and maybe those of the two at its ends.
    counts = np.bincount(tree.sample(DRAWS, key=3), minlength=1000)
    assert np.abs(counts - DRAWS * probabilities).max() <= 2.0
