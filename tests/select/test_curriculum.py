"""Scores, samplers, allocators, stages, quotas, arms, surveys and the queue, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Story, pool

import agentrl_core as arl
from agentrl_core import _core, select
from agentrl_core.component import IterationRecord
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipes.dart import DecayAllocator
from agentrl_core.recipes.gdro_rl import BanditAllocator
from agentrl_core.recipes.teach_my_agent import Linear
from agentrl_core.recipes.vade import LearningSignal
from agentrl_core.select import Selection
from agentrl_core.select.allocator import ProportionalAllocator

P = np.array([0.0, 0.25, 0.5, 1.0])


def closed(iteration: int, *, metrics: dict[str, float] | None = None, of: Any = None) -> IterationRecord:
    return IterationRecord(iteration, arl.Forest().freeze(), metrics or {}, pool=of)


def test_scores_by_hand() -> None:
    assert select.NearTarget(0.5)(P).tolist() == [-0.5, -0.25, 0.0, -0.5]
    assert select.NearTarget(0.5, width=0.25)(P).tolist() == [-0.25, 0.0, 0.0, -0.25]
    # p (1 - p)^2: 1/4 9/16 = 9/64, 1/8
    assert LearningSignal()(P).tolist() == [0.0, 9 / 64, 1 / 8, 0.0]
    # (sqrt(p (1 - p)) + 0.1)^2: 0.01, (sqrt(3) / 4 + 0.1)^2, 0.36
    np.testing.assert_allclose(select.OutcomeVariance(2.0, 0.1)(P), [0.01, (math.sqrt(3) / 4 + 0.1) ** 2, 0.36, 0.01])
    assert Linear(-2.0)(P).tolist() == [0.0, -0.5, -1.0, -2.0]


def test_probabilities_by_hand() -> None:
    # 0.2 / 4 + 0.8 w / sum w with w = 0, 1, 1, 2
    probabilities = select.ProportionalSampler(uniform=0.2).probabilities(np.array([0.0, 1.0, 1.0, 2.0]))
    np.testing.assert_allclose(probabilities, [0.05, 0.25, 0.25, 0.45])
    # exp((0.5 - s) / 0.1) for s = 0.5, 0.6: 1 and exp(-1)
    probabilities = select.ProportionalSampler(temperature=0.1).probabilities(Linear(-1.0)(np.array([0.5, 0.6])))
    np.testing.assert_allclose(probabilities, [1 / (1 + math.exp(-1)), math.exp(-1) / (1 + math.exp(-1))])
    # No task has a weight yet: all are equal.
    assert select.ProportionalSampler(uniform=0.2).probabilities(np.zeros(4)).tolist() == [0.25] * 4
    assert select.ProportionalSampler(uniform=1.0).probabilities(np.array([3.0, 1.0])).tolist() == [0.5, 0.5]
    assert select.ProportionalSampler().probabilities(np.zeros(0)).tolist() == []


@pytest.mark.parametrize(
    ("sampler", "scores", "message"),
    [
        (select.ProportionalSampler(), [0.0, 0.0], "all 2 scores are 0; set `uniform` above 0"),
        (
            select.ProportionalSampler(),
            [1.0, -1.0],
            r"scores\[1\] is -1\.0, and without a temperature scores are weights",
        ),
        (select.ProportionalSampler(), [math.nan, 1.0], r"scores\[0\] is nan"),
        (select.ProportionalSampler(), [math.inf, 1.0], r"scores\[0\] is inf"),
        (
            select.ProportionalSampler(temperature=0.1),
            [math.nan, 1.0],
            r"scores\[0\] is nan; use a score that is never NaN or infinity",
        ),
        (
            select.ProportionalSampler(temperature=0.1),
            [math.inf, 1.0],
            r"scores\[0\] is inf; use a score that is never NaN or infinity",
        ),
        (select.TopSampler(), [math.nan, 1.0], r"scores\[0\] is NaN; give a number, or -inf"),
        (select.ProportionalSampler(), [1.0, 0.0], "1 of 2 rows have a weight above 0"),
    ],
)
def test_wrong_scores_are_clear_errors(sampler: select.Sampler, scores: list[float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        sampler.choose(np.array(scores), np.arange(2), 2, 0)


@pytest.mark.parametrize(
    "sampler",
    [
        select.ProportionalSampler(),
        select.ProportionalSampler(uniform=0.3),
        select.ProportionalSampler(temperature=0.5),
    ],
)
def test_first_draws_follow_the_returned_probabilities(sampler: select.ProportionalSampler) -> None:
    scores, count = np.array([0.1, 0.4, 0.2, 0.3]), 20_000
    expected = sampler.probabilities(scores)
    counts = np.zeros(4)
    for key in range(count):
        places, chances = sampler.choose(scores, np.arange(4), 2, _core.rng.structural_seed(key))
        counts[places[0]] += 1
        assert chances.tolist() == expected[places].tolist()
    # 3 degrees of freedom: beyond 21.1 once in 10 000.
    assert ((counts - count * expected) ** 2 / (count * expected)).sum() < 21.1
    repeated = select.ProportionalSampler(replace=True).choose(scores, np.arange(4), 9, 3)[0]
    assert len(repeated) == 9


def test_allocators_by_hand() -> None:
    known = {"estimate": np.array([0.5, 0.0, 1.0, 0.25])}
    # w = p (1 - p)^2: 1/8, 0, 0, 9/64. Third rollouts gain w p (1 - p): 0.03125 and 0.02637; fourth w (p^3 (1 - p) + (1
    # - p)^3 p): 0.015625 and 0.01648. Of the 4 that are left of 12 each gets two.
    assert select.GreedyAllocator(low=2, high=5).counts({}, known, 12).tolist() == [4, 2, 2, 4]
    # At most three each: the remaining two go to the task that was never solved, until it is full.
    assert select.GreedyAllocator(low=2, high=3).counts({}, known, 12).tolist() == [3, 3, 2, 3]
    # sqrt(p (1 - p)) = 0.5, 0, 0, 0.433, at least 1: 10 = 5.36, 1, 1, 4.64 -> c = 8 / 0.933
    assert ProportionalAllocator(low=1).counts({}, known, 10).tolist() == [4, 1, 1, 4]
    assert DecayAllocator(0.6, low=2).counts({}, known, 32).tolist() == [8, 8, 2, 8]
    with pytest.raises(RecipeError, match="low=9 is not possible; give a number up to high=4"):
        select.GreedyAllocator(low=9, high=4)


def test_dual_arms_by_hand() -> None:
    arms = BanditAllocator(low=2, high=4, bins=2, rate=0.5, explore=0.1, price_rate=0.1, average=3.0)
    known = {"estimate": np.array([0.2, 0.9, 0.9])}
    story, state = Story(), arms.initial_state()
    # All arms equal: any choice that spends 9 is best; 3 each, or 2 twice and ... only the total counts.
    assert arms.counts(state, known, 9).sum() == 9
    # Bin 0 played 4 (rewards 1, 0, 0, 1), bin 1 played 2 (1, 1, 1, 0 over two tasks).
    visits = story.visits(0, {0: [1, 0, 0, 1], 1: [1, 1], 2: [1, 0]})
    state = arms.next({**state, "price": 0.1}, visits, known)
    # S_0(4) = 0.5 (0.5 - 0.4) = 0.05, S_1(2) = 0.5 (0.75 - 0.2) = 0.275; mean n = 8/3, price 0.1 - 0.1 / 3.
    np.testing.assert_allclose(state["scores"], [[0, 0, 0.05], [0.275, 0, 0]])
    assert state["price"] == pytest.approx(0.1 - 0.1 / 3)
    # 4 + 2 * 2 = 8 is then the best way to spend 8.
    assert arms.counts(state, known, 8).tolist() == [4, 2, 2]
    # The tracker's bin has priority, if there is one.
    assert arms.counts(state, known | {"bin": np.array([1.0, 0.0, 0.0])}, 10).tolist() == [2, 4, 4]


def test_pools_lose_tasks() -> None:
    story, pool_filter = Story(), select.PoolFilter(above=0.0, below=0.9, attempts=4)
    state = pool_filter.initial_state()
    first = story.visits(0, {1: [0, 0, 0, 0], 2: [1, 0], 3: [1, 1, 1, 1], 4: [1, 0, 1, 0]})
    state = pool_filter.next(state, first, np.array(story.tracked), 0)
    assert dict(zip(story.tracked, state["out"].tolist(), strict=True)) == {1: True, 2: False, 3: True, 4: False}
    # Four of ten attempts now: back in the band.
    state = pool_filter.next(state, story.visits(1, {1: [1, 1, 1, 1, 0, 0]}), np.array(story.tracked), 0)
    assert state["out"].tolist() == [False, False, True, False]
    newest = select.PoolFilter(at_most=0.5, newest=True)
    state = newest.next(newest.initial_state(), Story().visits(0, {1: [0, 0]}), np.array([1]), 0)
    state = newest.next(state, Story().visits(1, {1: [1, 1, 0]}), np.array([1]), 0)
    assert state["out"].tolist() == [True]


def test_pools_lose_tasks_at_the_end_of_an_epoch() -> None:
    story, pool_filter = Story(), select.PoolFilter(below=0.9, per="epoch")
    state = pool_filter.next(pool_filter.initial_state(), story.visits(0, {1: [1.0], 2: [0.0]}), np.array([1, 2]), 0)
    assert state["out"].tolist() == [False, False]
    state = pool_filter.next(state, story.visits(1, {2: [1.0]}), np.array([1, 2]), 1)
    assert state["out"].tolist() == [True, False]  # 1 of 1; 1 of 2


def test_some_of_the_outside_are_spared() -> None:
    rows = np.arange(10_000)
    pool_filter = select.PoolFilter(below=1.0, spare=0.2)
    out = pool_filter._outside(np.full(10_000, 5), np.full(10_000, 5), rows)
    # Four standard errors of 0.8.
    assert abs(out.mean() - 0.8) < 4 * math.sqrt(0.16 / 10_000)


def test_stages_advance() -> None:
    tasks = pool(6)
    tasks.column("attempts")
    tasks._columns["hops"] = np.array([1, 3, 4, 8, 9, 2])
    stages = select.Curriculum("hops", (3, 8), above=0.7, earlier=0.25, smoothing=0.5)
    assert stages.of(tasks).tolist() == [0, 0, 1, 1, 2, 0]
    assert stages.last == 2
    state = stages.initial_state()
    assert [(mask.tolist(), share) for mask, share in stages.parts(state, tasks)] == [
        ([True, True, False, False, False, True], 1.0)
    ]
    story = Story()
    # 0.6 first, then 1: 0.8 smoothed. Row 3 is of another bucket and does not count.
    state = stages.next(state, story.visits(0, {0: [1, 1, 1, 0, 0], 3: [1.0]}), closed(0, of=tasks))
    assert state == {"stage": 0, "begun": 0, "rate": 0.6}
    state = stages.next(state, story.visits(1, {3: [1.0]}), closed(1, of=tasks))
    assert state["rate"] == 0.6
    state = stages.next(state, story.visits(2, {1: [1.0]}), closed(2, of=tasks))
    assert state == {"stage": 1, "begun": 3, "rate": None}
    parts = stages.parts(state, tasks)
    assert [share for _, share in parts] == [0.75, 0.25]
    assert parts[0][0].tolist() == [False, False, True, True, False, False]
    assert parts[1][0].tolist() == [True, True, False, False, False, True]


def test_stages_of_domains_by_a_metric_or_by_time() -> None:
    tasks = pool(4, ("preference", "open", "verifiable", "other"))
    stages = select.Curriculum("domain", (("preference", "verifiable"), "open"), above=0.7, metric="success@preference")
    assert stages.of(tasks).tolist() == [0, 1, 0, -1]
    state = stages.next(stages.initial_state(), Story().visits(0, {}), closed(0, metrics={"success@preference": 0.7}))
    assert state["stage"] == 0
    state = stages.next(state, Story().visits(1, {}), closed(1, metrics={"success@preference": 0.71}))
    assert state["stage"] == 1
    assert stages.parts(state, tasks)[0][0].tolist() == [True, True, True, False]
    timed = select.Curriculum("domain", ("math", "code"), above=None, iterations=2)
    state = timed.initial_state()
    stage_history = []
    for iteration in range(5):
        state = timed.next(state, Story().visits(iteration, {}), closed(iteration))
        stage_history.append(state["stage"])
    assert stage_history == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": (3, 1)}, "give ascending numbers"),
        ({"buckets": ("3", "8")}, "give ascending numbers"),
        ({"buckets": (3, "x")}, "give a tuple of numbers or a tuple of texts"),
        ({"buckets": "3,8"}, "give a tuple of numbers or a tuple of texts"),
        ({"buckets": ()}, "give a tuple of at least one item"),
        ({"by": "domain", "buckets": (3, 8)}, "give names of domains"),
        ({"buckets": (3,), "above": None}, "set above or iterations, so that a stage ends"),
    ],
)
def test_impossible_stages(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        select.Curriculum(**{"by": "hops", **options})


def test_quotas_by_hand() -> None:
    quota = select.Quota((("math", 3), ("code", 1)), at_most=5.0)
    # Targets 3/4, 1/4, realised 0.9, 0.1: corrections 5/6 and 2.5, so weights 0.625 and 0.625.
    np.testing.assert_allclose(quota.shares({"realised": {"math": 0.9, "code": 0.1}}, ["math", "code"]), [0.5, 0.5])
    # No task of code was kept: its correction is at most 5.
    np.testing.assert_allclose(
        quota.shares({"realised": {"math": 1.0}}, ["math", "code"]), np.array([0.5625, 1.25]) / 1.8125
    )
    assert quota.shares({"realised": {}}, ["code", "math", "other"]).tolist() == [0.25, 0.75, 0.0]
    with pytest.raises(
        InvalidInputError, match=r"none of the domains math, code of targets is in the pool; use some of: other"
    ):
        quota.shares({"realised": {}}, ["other"])
    for targets in ((("math", -1),), (("math", 0),)):
        with pytest.raises(RecipeError, match="give shares of at least 0, not all 0"):
            select.Quota(targets)
    for targets in ("math=1", ("math",), (("math",),), (("math", math.nan),), (("math", 1, 2),)):
        with pytest.raises(RecipeError, match="give a tuple of tuples of texts that are not empty and numbers"):
            select.Quota(targets)


def test_arms_by_hand() -> None:
    arms = select.PromptBandit(variants=4, temperature=0.5, rate=0.5, halve_every=2, least=2)
    story, state = Story(), arms.initial_state()
    state = arms.next(state, story.visits(0, {1: [1, 1], 2: [0, 1], 3: [0, 0]}, variants={1: 0, 2: 1, 3: 2}))
    assert state["weights"].tolist() == [0.5, 0.25, 0.0, 0.0]
    # The softmax of 0.5 / 0.5, 0.25 / 0.5, 0 and 0.
    powers = np.exp([1.0, 0.5, 0.0, 0.0])
    np.testing.assert_allclose(arms.probabilities(state), powers / powers.sum())
    # After the second iteration the worse half of the three with two rollouts is dropped: one of them, variant 2.
    state = arms.next(state, story.visits(1, {4: [1]}, variants={4: 3}))
    assert state["alive"].tolist() == [True, True, False, True]
    assert arms.probabilities(state)[2] == 0
    assert set(arms.choose(state, 400, 3).tolist()) == {0, 1, 3}
    # Never below two.
    state["rollouts"][:] = 99
    for iteration in (3, 5, 7):
        state = arms.next(state, story.visits(iteration, {}))
    assert state["alive"].sum() == 2


def test_surveys_are_due() -> None:
    assert [select.Survey(every=3).due(iteration) for iteration in range(4)] == [True, False, False, True]
    assert [select.Survey().due(iteration) for iteration in range(2)] == [True, False]
    assert sorted(select.Survey().rows(pool(5), 1).tolist()) == [0, 1, 2, 3, 4]
    assert len(set(select.Survey(tasks=3).rows(pool(5), 1).tolist())) == 3


def test_the_queue_by_hand() -> None:
    queue = select.RetryQueue(every=2, share=0.5, tries=2)
    story, state = Story(), queue.initial_state()
    state = queue.next(state, story.visits(0, {1: [0, 0], 2: [1, 0], 3: [0]}), None)
    assert state["rows"].tolist() == [1, 3]
    none = np.zeros(0, np.int64)
    assert queue.offered(state, 4, 1, none).tolist() == []  # not in every iteration
    assert queue.offered(state, 4, 2, none).tolist() == [0, 1]
    assert queue.offered(state, 4, 2, np.array([1])).tolist() == [1]
    assert queue.offered(state, 2, 2, none).tolist() == [0]
    assert select.RetryQueue(every=2, share=0.5, order="lifo").offered(state, 2, 2, none).tolist() == [1]
    tried = Selection.of(np.array([1, 3]), 4)
    tried.items[:] = state["items"]
    state = queue.next(state, story.visits(2, {1: [0], 3: [1]}), tried)
    assert (state["rows"].tolist(), state["tries"].tolist()) == ([1], [1])
    again = Selection.of(np.array([1]), 4)
    again.items[:] = state["items"]
    state = queue.next(state, story.visits(4, {1: [0], 5: [0]}), again)
    assert (state["rows"].tolist(), state["items"].tolist(), state["next"]) == ([5], [2], 3)
    old = select.RetryQueue(max_age=2)
    assert old.next(state, story.visits(6, {}), None)["rows"].tolist() == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(2, 12))
def test_allocators_keep_the_total(rates: list[float], each: int) -> None:
    known, total = {"estimate": np.array(rates)}, each * len(rates)
    greedy = select.GreedyAllocator("one", low=1, high=64).counts({}, known, total)
    assert greedy.min() >= 1
    assert greedy.sum() <= total
    shared = ProportionalAllocator(low=1, high=256).counts({}, known, total)
    assert shared.sum() == total
