"""Trackers, by hand and against naive folds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Story, pool

from agentrl_core import select
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipes.a_star_po import LogMeanExp
from agentrl_core.recipes.teach_my_agent import LearningProgress
from agentrl_core.recipes.v0 import PoolColumn
from agentrl_core.select import RecentVisits
from agentrl_core.select.tracker import Candidates
from agentrl_core.select.value_trackers import VisitCount

ROWS = list(range(5))
VISIT = st.dictionaries(st.sampled_from(ROWS), st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4))
RUN = st.lists(VISIT, min_size=1, max_size=8)


def test_beta_by_hand() -> None:
    # decay 1/2, prior (1, 1), 3 of 4 and then 1 of 4: S = 3/2 + 1 = 2.5, F = 1/2 + 3 = 3.5, mean 3.5 / 8.
    story, tracker = Story(), select.Beta(decay=0.5)
    state = tracker.next(tracker.initial_state(), story.visits(0, {7: [1, 1, 1, 0]}))
    state = tracker.next(state, story.visits(1, {7: [1, 0, 0, 0]}))
    estimates = tracker.estimate(state, story.candidates([7, 8], 2))
    assert estimates.tolist() == [3.5 / 8, 0.5]


def test_evidence_fades_while_a_task_waits() -> None:
    # 4 successes of 4, then three iterations without a visit at 1/2 each: S = 1/2, F = 0; mean 1.5 / 2.5.
    story, tracker = Story(), select.Beta(idle_decay=0.5)
    state = tracker.next(tracker.initial_state(), story.visits(2, {3: [1, 1, 1, 1]}))
    assert tracker.estimate(state, story.candidates([3], 3)).tolist() == [5 / 6]
    assert tracker.estimate(state, story.candidates([3], 6)).tolist() == [1.5 / 2.5]


@settings(max_examples=60, deadline=None)
@given(RUN, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.25, 1.0]), st.sampled_from([(1.0, 1.0), (0.0, 0.0)]))
def test_beta_is_the_fold_of_every_iteration(
    run: list[dict[int, list[float]]], decay: float, idle: float, prior: tuple[float, float]
) -> None:
    tracker = select.Beta(*prior, decay=decay, idle_decay=idle)
    story, state = Story(), tracker.initial_state()
    naive = dict.fromkeys(ROWS, (0.0, 0.0))
    for iteration, outcomes in enumerate(run):
        before = {name: array.copy() for name, array in state.items()}
        visits = story.visits(iteration, outcomes)
        following = tracker.next(state, visits)
        assert all((state[name] == before[name]).all() for name in state), "next changes nothing in place"
        state = following
        for row, (successes, failures) in naive.items():
            if row in outcomes:
                won = sum(outcomes[row])
                naive[row] = decay * successes + won, decay * failures + len(outcomes[row]) - won
            else:
                naive[row] = idle * successes, idle * failures
    estimates = tracker.estimate(state, story.candidates(ROWS, len(run)))
    for row, value in zip(ROWS, estimates.tolist(), strict=True):
        alpha, beta = naive[row][0] + prior[0], naive[row][1] + prior[1]
        assert value == pytest.approx(alpha / (alpha + beta) if alpha + beta > 0 else 0.5)


def test_rewards_as_evidence_are_shares() -> None:
    story, tracker = Story(), select.Beta(of="reward")
    state = tracker.next(tracker.initial_state(), story.visits(0, {1: [0, 0]}, rewards={1: [0.5, 0.25]}))
    assert tracker.estimate(state, story.candidates([1], 1)).tolist() == [1.75 / 4]
    with pytest.raises(
        InvalidInputError, match=r"select\.Beta: a reward of the task in row \d+ of the pool is 2\.0; with of='reward'"
    ):
        tracker.next(state, story.visits(1, {1: [0]}, rewards={1: [2.0]}))


def test_an_expected_success_rate_shares_out_the_prior() -> None:
    tasks = pool(4)
    tasks.column("attempts")  # the facts are read
    tasks._columns["prior"] = np.array([0.25, 1.0, 0.5, 0.0])
    known = Candidates(tasks, np.arange(4), np.full(4, -1), 0)
    tracker = select.Beta(expected="prior")
    assert tracker.estimate(tracker.initial_state(), known).tolist() == [0.25, 1.0, 0.5, 0.0]
    assert PoolColumn("prior").estimate({}, known).tolist() == [0.25, 1.0, 0.5, 0.0]
    tasks._columns["prior"] = np.array([0.25, 1.5, 0.5, 0.0])
    with pytest.raises(
        InvalidInputError, match=r"of the pool has .* in column 'prior'; give expected success rates from 0 to 1"
    ):
        tracker.estimate(tracker.initial_state(), known)


@settings(max_examples=60, deadline=None)
@given(RUN, st.integers(1, 4), st.sampled_from(["solved", "success", "reward"]))
def test_windows_are_the_last_visits(run: list[dict[int, list[float]]], size: int, of: str) -> None:
    tracker = RecentVisits(size, of)  # type: ignore[arg-type]
    story, state = Story(), tracker.initial_state()
    naive: dict[int, list[float]] = {row: [] for row in ROWS}
    for iteration, outcomes in enumerate(run):
        state = tracker.next(state, story.visits(iteration, outcomes))
        for row, values in outcomes.items():
            naive[row].append(max(values) if of == "solved" else sum(values) / len(values))
    known = story.candidates(ROWS, len(run))
    estimates, curves = tracker.estimate(state, known), tracker.curves(state, known, 3)
    for row in ROWS:
        last = naive[row][-size:]
        assert estimates[row] == pytest.approx(sum(last) / len(last) if last else 0.5)
        tail = naive[row][-min(3, size) :] if naive[row] else []
        np.testing.assert_allclose(curves[row], [math.nan] * (3 - len(tail)) + tail)


def test_a_bin_changes_beyond_its_border() -> None:
    # Ten bins; 0.1 of bin 1. With hysteresis 0.06 a mean of 0.05 stays in bin 1 (0.04 to 0.26), 0.025 goes to bin 0.
    story, tracker = Story(), RecentVisits(1, "reward", bins=10, hysteresis=0.06)
    state, bins = tracker.initial_state(), []
    for iteration, mean in enumerate([0.15, 0.05, 0.02, 0.3, 1.0]):
        state = tracker.next(state, story.visits(iteration, {4: [0.0]}, rewards={4: [mean]}))
        bins.append(int(tracker.columns(state, story.candidates([4], iteration + 1))["bin"][0]))
    assert bins == [1, 1, 0, 3, 9]
    assert tracker.columns(state, story.candidates([9], 5))["bin"].tolist() == [5.0]


def test_learning_progress_by_hand() -> None:
    # returns 0, 1, 0.5: changes 1, 0.5; smoothed with 1/2 from 0: 0.5, then 0.25 + 0.25 = 0.5.
    story, tracker = Story(), LearningProgress(rate=0.5)
    state, estimates = tracker.initial_state(), []
    for iteration, values in enumerate([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]]):
        state = tracker.next(state, story.visits(iteration, {2: values}))
        estimates.append(tracker.estimate(state, story.candidates([2, 3], iteration + 1)).tolist())
    assert estimates == [[0.0, 0.0], [0.5, 0.0], [0.5, 0.0]]
    first = LearningProgress(from_zero=True)
    state = first.next(first.initial_state(), Story().visits(0, {2: [1.0]}))
    assert state["progress"].tolist() == [1.0]


def test_the_optimal_value_of_a_survey() -> None:
    # V* = 0.5 ln((2 exp 0 + 2 exp 2) / 4) = 0.716890 for rewards 0, 0, 1, 1.
    story, tracker = Story(), LogMeanExp()
    state = tracker.next(tracker.initial_state(), story.visits(0, {5: [0, 0, 1, 1]}, survey=True))
    state = tracker.next(state, story.visits(1, {5: [1, 1], 6: [1]}))  # trained rows do not count
    estimates = tracker.estimate(state, story.candidates([5, 6, 7], 2))
    np.testing.assert_allclose(estimates, [0.716890, math.nan, math.nan], atol=1e-6)
    known = LogMeanExp(unseen=0.25).estimate(state, story.candidates([5, 6, 7], 2))
    np.testing.assert_allclose(known, [0.716890, 0.25, 0.25], atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(RUN)
def test_values_are_those_of_all_rollouts(run: list[dict[int, list[float]]]) -> None:
    tracker = LogMeanExp(0.7, surveys=False)
    story, state = Story(), tracker.initial_state()
    everything: dict[int, list[float]] = {}
    for iteration, outcomes in enumerate(run):
        state = tracker.next(state, story.visits(iteration, outcomes))
        for row, values in outcomes.items():
            everything.setdefault(row, []).extend(values)
    estimates = tracker.estimate(state, story.candidates(ROWS, len(run)))
    for row in ROWS:
        values = everything.get(row, [])
        naive = 0.7 * math.log(sum(math.exp(value / 0.7) for value in values) / len(values)) if values else math.nan
        assert estimates[row] == pytest.approx(naive, nan_ok=True)


def test_visits_are_counted() -> None:
    story, tracker = Story(), VisitCount()
    state = tracker.next(tracker.initial_state(), story.visits(0, {1: [0.0], 4: [1.0]}))
    state = tracker.next(state, story.visits(1, {1: [0.0]}))
    state = tracker.next(state, story.visits(2, {1: [0.0]}, survey=True))
    assert tracker.estimate(state, story.candidates([1, 4, 9], 3)).tolist() == [2.0, 1.0, 0.0]


def test_predictions_come_from_the_last_survey() -> None:
    tasks = pool(3)
    tasks.column("attempts")
    tasks._columns["embedding"] = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], np.float32)
    known = Candidates(tasks, np.arange(3), np.full(3, -1), 1)
    story, tracker = Story(), select.PredictedSuccess()
    assert tracker.estimate(tracker.initial_state(), known).tolist() == [0.5] * 3
    state = tracker.next(tracker.initial_state(), story.visits(0, {0: [1, 1], 1: [0, 1]}, survey=True))
    # Task 2 is equally near to both: (1 + 0.5) / 2. Surveyed tasks have their own.
    np.testing.assert_allclose(tracker.estimate(state, known), [1.0, 0.5, 0.75])
    assert tracker.next(state, story.visits(1, {0: [0.0]})) == state
    # A query that is nearer to reference 0: weights e^(1/sqrt 2) and 1.
    tasks._columns["embedding"][2] = [1.0, 0.0]
    near = math.exp(1 / math.sqrt(2))
    np.testing.assert_allclose(tracker.estimate(state, known)[2], (near + 0.5) / (near + 1))
    tasks._columns["embedding"] = np.zeros(3)
    with pytest.raises(InvalidInputError, match="column 'embedding' of the pool has no vectors"):
        tracker.estimate(state, known)


def test_draws_of_the_posterior_are_keyed_by_task() -> None:
    story, tracker = Story(), select.Beta()
    state = tracker.next(tracker.initial_state(), story.visits(0, {1: [1.0] * 50, 2: [0.0] * 50}))
    draws = tracker.posterior_draw(state, story.candidates([1, 2, 3], 1), 9)
    assert draws[0] > 0.8
    assert draws[1] < 0.2
    assert tracker.posterior_draw(state, story.candidates([3, 1], 1), 9).tolist() == draws[[2, 0]].tolist()
    with pytest.raises(InvalidInputError, match=r"alpha\[0\] is 0; give a finite number above 0"):
        select.Beta(0.0, 0.0).posterior_draw(state, story.candidates([3], 1), 9)
    exact = VisitCount()
    assert exact.posterior_draw(exact.initial_state(), story.candidates([3], 1), 9).tolist() == [0.0]


def test_rollouts_without_a_verdict_do_not_count() -> None:
    story = Story()
    visits = story.visits(0, {1: [math.nan, 1.0], 2: [math.nan]})
    for tracker in (select.Beta(0.0, 0.0), RecentVisits(3)):
        state = tracker.next(tracker.initial_state(), visits)
        assert tracker.estimate(state, story.candidates([1, 2], 1)).tolist() == [1.0, 0.5]
