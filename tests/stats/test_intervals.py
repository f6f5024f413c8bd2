"""Statistics and their bootstrap intervals: by hand, against naive code, and against rliable."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rliable import metrics
from scipy.stats import bootstrap, mannwhitneyu

from agentrl_core import stats
from agentrl_core.exceptions import InvalidInputError

TABLES = arrays(
    np.float64,
    st.tuples(st.integers(1, 9), st.integers(1, 6)),
    elements=st.floats(-2.0, 2.0).map(lambda value: round(value, 2)),
)
PEERS = {
    "iqm": metrics.aggregate_iqm,
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
    "optimality_gap": metrics.aggregate_optimality_gap,
}


@pytest.mark.parametrize("statistic", PEERS)
@settings(max_examples=60, deadline=None)
@given(scores=TABLES)
def test_point_estimates_equal_those_of_rliable(statistic, scores):
    estimate = stats.bootstrap(scores, statistic, resamples=1).value
    assert estimate == pytest.approx(PEERS[statistic](scores), abs=1e-12)


def percentiles(scores, statistic, resamples):
    """Return a naive stratified bootstrap: the 2.5 and 97.5 % quantiles."""
    rng, (runs, tasks) = np.random.default_rng(9), scores.shape
    estimates = [statistic(scores[rng.integers(0, runs, (runs, tasks)), np.arange(tasks)]) for _ in range(resamples)]
    return np.quantile(estimates, [0.025, 0.975])


@pytest.mark.parametrize("statistic", PEERS)
def test_intervals_are_those_of_a_naive_bootstrap_but_for_chance(statistic):
    scores = np.random.default_rng(3).beta(2, 3, (8, 12))
    ours = stats.bootstrap(scores, statistic, resamples=40_000)
    low, high = percentiles(scores, PEERS[statistic], 4_000)
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.06 * (high - low))


def test_the_interval_of_a_mean_is_scipys_but_for_chance():
    scores = np.random.default_rng(4).normal(size=12)
    ours = stats.bootstrap(scores, "mean", confidence=0.9)
    theirs = bootstrap(
        (scores,), np.mean, confidence_level=0.9, n_resamples=40_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_an_interval_of_two_runs_by_hand():
    """One task, runs 0 and 1: the mean is 0, 1/2 and 1 with probability 1/4, 1/2 and 1/4."""
    assert stats.bootstrap([0.0, 1.0], "mean", confidence=0.95) == (0.5, 0.0, 1.0)
    assert stats.bootstrap([0.0, 1.0], "mean", confidence=0.4) == (0.5, 0.5, 0.5)


def test_tasks_are_resampled_by_themselves():
    """Runs of a task are equal, tasks differ: resampling changes nothing."""
    scores = np.tile([0.1, 0.5, 0.9], (4, 1))
    for statistic in PEERS:
        value, low, high = stats.bootstrap(scores, statistic)
        assert (low, high) == pytest.approx((value, value))


def test_the_seed_decides():
    scores = np.random.default_rng(0).random((5, 4))
    one = stats.bootstrap(scores, seed=1, resamples=500)
    assert one == stats.bootstrap(scores, seed=1, resamples=500)
    assert one != stats.bootstrap(scores, seed=2, resamples=500)


@settings(max_examples=60, deadline=None)
@given(first=TABLES, runs=st.integers(1, 5), seed=st.integers(0, 99))
def test_improvement_is_that_of_mann_and_whitney(first, runs, seed):
    second = np.round(np.random.default_rng(seed).uniform(-2, 2, (runs, first.shape[1])), 1)
    pairs = runs * len(first)
    expected = np.mean(
        [
            mannwhitneyu(ours, theirs, alternative="greater", method="asymptotic").statistic / pairs
            for ours, theirs in zip(first.T, second.T, strict=True)
        ]
    )
    assert stats.probability_of_improvement(first, second, resamples=1).value == pytest.approx(expected, abs=1e-12)


def test_improvement_has_an_interval_and_a_mirror():
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.5, 1, (10, 5)), rng.normal(0, 1, (7, 5))
    improvement, mirrored = (
        stats.probability_of_improvement(first, second),
        stats.probability_of_improvement(second, first),
    )
    assert improvement.low < improvement.value < improvement.high
    assert improvement.value == pytest.approx(1 - mirrored.value)
    assert improvement.value == pytest.approx(metrics.probability_of_improvement(first, second))
    rng = np.random.default_rng(2)
    resampled = [
        metrics.probability_of_improvement(
            first[rng.integers(0, 10, (10, 5)), np.arange(5)], second[rng.integers(0, 7, (7, 5)), np.arange(5)]
        )
        for _ in range(200)
    ]
    assert (improvement.low, improvement.high) == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.03)


def test_a_profile_is_the_share_above_each_threshold():
    scores = np.round(np.random.default_rng(2).random((6, 9)), 1)
    thresholds = np.linspace(0, 1, 11)
    profile = stats.performance_profile(scores, thresholds)
    assert [estimate.value for estimate in profile] == pytest.approx(
        [np.mean(scores > threshold) for threshold in thresholds]
    )
    for threshold, estimate in zip(thresholds, profile, strict=True):
        low, high = percentiles(scores, lambda drawn, threshold=threshold: np.mean(drawn > threshold), 1_000)
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.04)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.bootstrap([]), r"scores has shape \(0,\)"),
        (lambda: stats.bootstrap([[1.0, 2.0], [3.0]]), r"scores\[1\] has 1 tasks, but scores\[0\] has 2"),
        (lambda: stats.bootstrap([0.1, float("nan")]), r"^scores\[1\] is nan; give finite scores$"),
        (lambda: stats.bootstrap([[0.1, 0.2], [0.3, None]]), r"^scores\[1\]\[1\] is nan; give finite scores$"),
        (lambda: stats.bootstrap([[0.1, 1 << 2000]]), rf"^scores\[0\]\[1\] is {str(1 << 2000)[:40]}; give numbers"),
        (lambda: stats.bootstrap([np.array([0.1, 0.2]), ["x", 0.2]]), r"^scores\[1\]\[0\] is 'x'; give numbers"),
        (lambda: stats.bootstrap([0.5, [0.1]]), r"^scores\[1\] has 1 tasks, but scores\[0\] is 0\.5; give numbers"),
        (lambda: stats.bootstrap([[0.1, [0.5]]]), r"^scores\[0\]\[1\] is \[0\.5\]; give numbers"),
        (lambda: stats.bootstrap([[0.1], 0.5]), r"^scores\[1\] is 0\.5; give numbers"),
        (lambda: stats.bootstrap(np.array([0.1, "x"], object)), r"^scores\[1\] is 'x'; give numbers"),
        (
            lambda: stats.bootstrap([[0.1, 0.2], np.array([0.1, 0.2, 0.3])]),
            r"^scores\[1\] has 3 tasks, but scores\[0\] has 2; give numbers",
        ),
        (
            lambda: stats.bootstrap([0.1], "best"),
            'statistic is "best"; use "mean", "median", "iqm" or "optimality_gap"',
        ),
        (lambda: stats.bootstrap([0.1], confidence=95), "^confidence is 95; give a share between 0 and 1"),
        (lambda: stats.bootstrap([0.1], confidence="x"), "^confidence is 'x'; give a share between 0 and 1"),
        (lambda: stats.bootstrap([0.1], resamples=0), "^resamples is 0; give a whole number of at least 1"),
        (lambda: stats.bootstrap([0.1], resamples="x"), "^resamples is 'x'; give a whole number of at least 1"),
        (lambda: stats.bootstrap([0.1], threshold="x"), "^threshold is 'x'; give a finite number, such as 1.0$"),
        (lambda: stats.probability_of_improvement([[1.0, 2.0]], [1.0]), "second: it has 1 tasks, and first has 2"),
        (lambda: stats.performance_profile([0.1], [float("inf")]), r"^thresholds\[0\] is inf; give a list of finite"),
        (lambda: stats.performance_profile([0.1], ["x"]), r"^thresholds\[0\] is 'x'; give a list of finite numbers"),
        (lambda: stats.performance_profile([0.1, math.nan], [0.5]), r"^scores\[1\] is nan; give finite scores$"),
    ],
)
def test_wrong_calls(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call()
