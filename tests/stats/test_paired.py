"""Tests of paired runs: by hand and against SciPy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test

from agentrl_core import stats
from agentrl_core.exceptions import InvalidInputError

SCORES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=9)


@settings(max_examples=60, deadline=None)
@given(pairs=SCORES)
def test_the_p_value_is_scipys(pairs):
    first, second = np.array(pairs, float).T / 4
    difference = stats.paired_difference(first, second, resamples=1)
    reference = permutation_test(
        (first - second,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert difference.p_value == pytest.approx(min(reference.pvalue, 1.0), abs=1e-12)
    assert difference.mean == pytest.approx(np.mean(first - second))
    assert difference.pairs == len(pairs)


def test_many_pairs_are_flipped_by_chance():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.25, 1, 60), rng.normal(0, 1, 60)
    difference = stats.paired_difference(first, second, resamples=50_000)
    reference = permutation_test(
        (first - second,), np.mean, permutation_type="samples", n_resamples=50_000, rng=np.random.default_rng(1)
    )
    assert difference.p_value == pytest.approx(reference.pvalue, abs=0.01)
    assert difference.low < difference.mean < difference.high
    assert difference == stats.paired_difference(first, second, resamples=50_000)


def test_level_under_no_difference():
    """Of 400 experiments without a difference, about 5 % reject at 5 %: at most 32 with a probability of 99 %."""
    rng = np.random.default_rng(7)
    rejected = sum(
        stats.paired_difference(rng.normal(size=10), rng.normal(size=10), resamples=1).p_value <= 0.05
        for _ in range(400)
    )
    assert 8 <= rejected <= 32


def test_the_interval_covers_the_mean_about_as_often_as_its_level():
    """Binomial of 400 at 0.95: standard deviation 4.4. Percentile intervals of 40 values cover slightly less often."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        difference = stats.paired_difference(rng.standard_normal(40) + 0.3, np.zeros(40), resamples=1_000)
        covered += difference.low <= 0.3 <= difference.high
    assert 350 <= covered <= 395


def naive_holm(p_values):
    """Reject one by one from the smallest; the corrected value is the level at which it is rejected."""
    corrected, reached = [0.0] * len(p_values), 0.0
    for place, row in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, p_values[row] * (len(p_values) - place)))
        corrected[row] = reached
    return corrected


@settings(max_examples=60, deadline=None)
@given(p_values=st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_equals_its_definition(p_values):
    assert stats.holm(p_values) == pytest.approx(naive_holm(p_values), abs=1e-12)


def test_holm_by_hand():
    """Holm 1979, as in textbooks: 0.01 times 4, 0.02 times 3, 0.03 times 2, 0.04 and not less than the previous one."""
    assert stats.holm([0.04, 0.01, 0.03, 0.02]).tolist() == pytest.approx([0.06, 0.04, 0.06, 0.06])


def test_the_detectable_effect_shrinks_with_pairs_and_grows_with_power():
    assert math.isinf(stats.detectable_effect(5))
    assert stats.detectable_effect(5, alpha=0.1) < 2.5
    effects = [stats.detectable_effect(pairs, simulations=400) for pairs in (6, 8, 12, 16)]
    assert effects == sorted(effects, reverse=True)
    assert stats.detectable_effect(8, power=0.9, simulations=400) > effects[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.paired_difference([1.0], [1.0, 2.0]), "second: it has 2 scores, and first has 1"),
        (lambda: stats.paired_difference([], []), r"first has shape \(0,\)"),
        (lambda: stats.paired_difference([1.0, math.nan], [0.0, 0.0]), "first: the score of pair 1 is nan; leave"),
        (lambda: stats.holm([0.5, 1.5]), r"p_values\[1\] is 1\.5; give numbers from 0 to 1"),
        (lambda: stats.holm([[0.5]]), r"p_values has shape \(1, 1\); give a one-dimensional list"),
        (
            lambda: stats.paired_difference([1.0, 1 << 2000], [1.0, 2.0]),
            rf"^first\[1\] is {str(1 << 2000)[:40]}; give a list of one score for each pair$",
        ),
        (lambda: stats.holm(["a"]), r"p_values\[0\] is 'a'; give a list of numbers from 0 to 1"),
        (lambda: stats.detectable_effect(1), "pairs is 1; an exact test needs 2 to 20 pairs"),
        (lambda: stats.detectable_effect(10, alpha=0.0), "alpha is 0; give a probability"),
    ],
)
def test_wrong_calls(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call()
