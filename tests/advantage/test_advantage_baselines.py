"""Components with other baselines, with state, votes and softmax weights; compared with loops and fixtures."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from rollouts import plain, ragged, small

from agentrl_core import Batch
from agentrl_core.advantage import BaselineRelative, TrackedBaseline
from agentrl_core.component import IterationRecord, StatefulComponent
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipes.remax import GreedyRelative
from agentrl_core.weight import FlagFilter


def column(batch: Batch, name: str = "advantage", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def visits(component: StatefulComponent, *scores: list[float], **columns: list[float]) -> list[list[float]]:
    """Return the advantages of one group in successive iterations; the state passes through JSON in between."""
    state = component.initial_state()
    out = []
    for row in scores:
        closed = component.add_columns(state, small([(0, [1])] * len(row), draw_score=row, **columns))
        state = json.loads(json.dumps(component.next(state, IterationRecord.of(closed))))
        out.append(column(closed))
    return out


def test_a_column_as_baseline() -> None:
    batch = small([(0, [1])] * 3, draw_score=[1.0, 0.0, math.nan], draw_value=[0.25, 0.25, 0.25])
    close(column(BaselineRelative(column="value")(batch)), [0.75, -0.25, 0.0])
    close(column(BaselineRelative(column="value", positive_only=True, at_most=0.5)(batch)), [0.5, 0.0, 0.0])


def test_baseline_by_length() -> None:
    batch = small([(0, [10]), (0, [30]), (1, [5])], draw_score=[1.0, 0.0, 1.0])
    close(column(BaselineRelative(kind="weighted", column="trained_tokens")(batch)), [0.75, -0.25, 0.0])


@pytest.mark.parametrize("kind", ["weighted", "log_mean_exp"])
def test_a_group_of_one_may_get_its_score(kind: str) -> None:
    batch = small([(0, [2]), (1, [1]), (1, [3]), (2, [1]), (2, [1])], draw_score=[3.0, 1.0, 1.0, 2.0, math.nan])
    options = {"kind": kind, "column": "trained_tokens" if kind == "weighted" else ""}
    close(column(BaselineRelative(**options)(batch)), [0.0] * 5)
    close(column(BaselineRelative(singleton="raw", **options)(batch)), [3.0, 0.0, 0.0, 2.0, 0.0])


def test_verl_gives_a_group_of_one_its_score() -> None:
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is installed by `make test`")
    lengths, scores, groups = [3, 1, 2], [2.0, 1.0, 0.0], [0, 1, 1]
    mask = torch.tensor([[float(place < length) for place in range(3)] for length in lengths])
    theirs, _ = core_algos.compute_opo_outcome_advantage(
        torch.tensor(scores)[:, None] * torch.nn.functional.one_hot(torch.tensor(lengths) - 1, 3),
        mask,
        np.array(groups),
    )
    batch = small([(group, [length]) for group, length in zip(groups, lengths, strict=True)], draw_score=scores)
    ours = BaselineRelative(kind="weighted", column="trained_tokens", singleton="raw")(batch)
    close(column(ours), theirs[:, 0].numpy())


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_weighted_baseline(seed: int, leave_one_out: bool) -> None:
    batch = ragged(seed)
    weights = np.random.default_rng(seed).uniform(0.1, 2.0, size=batch.num_draws)
    weights[batch.column("group_id", "draw") == 0] = 0.0
    draws = plain(batch)
    expected = []
    for draw in draws:
        voters = [other for other in draws if other.group == draw.group and other.valid]
        heavy = any(weights[other.row] for other in voters)
        voters = [other for other in voters if not leave_one_out or other is not draw]
        w = [weights[other.row] if heavy else 1.0 for other in voters]
        there = draw.valid and voters
        expected.append(draw.score - np.average([other.score for other in voters], weights=w) if there else 0.0)
    component = BaselineRelative(kind="weighted", column="w", leave_one_out=leave_one_out)
    close(column(component(batch.with_columns("draw", w=weights))), expected)


@pytest.mark.parametrize(
    ("scores", "variance", "prior", "baseline"),
    [([1, 1, -1, 1], 1.0, -0.5, 0.25), ([1, 1, -1, 1], 1.0, 0.5, 0.5), ([1, 1, 0, 1], 0.25, 0.0, 2 / 3)],
)
def test_shrunk_baseline(scores: list[float], variance: float, prior: float, baseline: float) -> None:
    batch = small([(0, [1])] * 4, draw_score=[float(score) for score in scores], draw_prior=[prior] * 4)
    advantages = column(BaselineRelative(kind="shrunk", column="prior", variance=variance)(batch))
    close(advantages, np.array(scores) - baseline, 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_leave_one_out_excludes_a_draw_from_its_own_shrunk_baseline(seed: int) -> None:
    batch = ragged(seed)
    draws = plain(batch)
    prior = np.random.default_rng(seed).uniform(0.0, 2.0, size=max(draw.group for draw in draws) + 1)
    expected = []
    for draw in draws:
        others = [o.score for o in draws if o.group == draw.group and o.valid and o is not draw]
        baseline = prior[draw.group]
        if others:
            noise = 0.25 / len(others)
            distance = max(0.0, (np.mean(others) - baseline) ** 2 - noise)
            share = distance / (distance + noise)
            baseline = share * np.mean(others) + (1.0 - share) * baseline
        expected.append(draw.score - baseline if draw.valid else 0.0)
    component = BaselineRelative(kind="shrunk", column="prior", leave_one_out=True)
    close(column(component(batch.with_columns("draw", prior=[prior[draw.group] for draw in draws]))), expected)


def test_log_mean_exp_baseline() -> None:
    batch = small([(0, [1])] * 4, draw_score=[0.0, 0.0, 1.0, 1.0])
    close(column(BaselineRelative(kind="log_mean_exp")(batch)), np.array([0, 0, 1, 1]) - 0.716890, 1e-6)


def test_tracked_success_rate() -> None:
    by_visit = visits(TrackedBaseline(decay=0.5), [1.0, 0.0, 1.0], [1.0, math.nan])
    close(by_visit[0], [0.5, -0.5, 0.5])
    # alpha 2, beta 1.
    close(by_visit[1], [1.0 - 2 / 3, 0.0])


def test_a_tracked_baseline_decays_faster_with_a_larger_policy_kl() -> None:
    scores = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    component = TrackedBaseline(decay=0.9, adapt="window", decay_at_least=0.5, kl_target=0.1)
    by_visit = visits(component, *scores, draw_policy_kl=[0.05, 0.05])
    decay = 0.9 - 0.4 * 0.5
    alpha, beta = 1.0 * decay + 2.0, 1.0 * decay
    close(by_visit[2], [-alpha / (alpha + beta)] * 2)


@pytest.mark.parametrize(("moved", "decay"), [(0.02, 0.58), (0.1, 0.9), (0.15, 0.5)])
def test_it_keeps_most_where_the_policy_moves_as_it_should(moved: float, decay: float) -> None:
    component = TrackedBaseline(decay=0.9, adapt="window_peak", decay_at_least=0.5, kl_target=0.1)
    by_visit = visits(component, [1.0, 0.0], [1.0, 1.0], [0.0, 0.0], draw_policy_kl=[moved] * 2)
    close(by_visit[2], [-(decay + 2.0) / (2.0 * decay + 2.0)] * 2)


def test_since_visit_decay_depends_on_the_policy_kl_since_the_last_visit() -> None:
    component = TrackedBaseline(adapt="since_visit", decay=0.9, decay_at_least=0.3, kl_target=0.1)
    state = component.initial_state()
    by_visit = []
    # Task 0 moves by 0.1 in the mean (half is kept), task 1 so far that the least is kept, task 2 hardly.
    for scores, moved in (
        ([1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]),
        ([0.0, 0.0, 0.0, 0.0], [0.05, 0.15, 9.0, 0.001]),
        ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, math.nan]),
    ):
        batch = small([(0, [1]), (0, [1]), (1, [1]), (2, [1])], draw_score=scores, draw_policy_kl=moved)
        result = component.add_columns(state, batch)
        state = json.loads(json.dumps(component.next(state, IterationRecord.of(result))))
        by_visit.append(column(result))
    close(by_visit[1], [-0.5, -0.5, -1.0, -1.0])
    close(by_visit[2], [-0.5 / (0.5 + 2.5)] * 2 + [-0.3 / 1.3, -0.9 / 1.9])


def test_moving_mean_by_role() -> None:
    # Role 1 moves by its own rewards.
    scores = [[1.0, 3.0], [1.0, 3.0]]
    after = TrackedBaseline(kind="ema", key="role", decay=0.5, initial=0.0)
    close(visits(after, *scores, draw_role=[0, 1]), [[1.0, 3.0], [0.5, 1.5]])
    before = TrackedBaseline(kind="ema", key="role", decay=0.5, initial=0.0, update="before")
    close(visits(before, *scores, draw_role=[0, 1]), [[0.5, 1.5], [0.25, 0.75]])


def test_window_of_group_means() -> None:
    component = TrackedBaseline(kind="window", positive_only=True, scale="window")
    by_visit = visits(component, [0.0, 2.0], [3.0, 0.0], [2.5, 1.0])
    close(by_visit[0], [0.0, 0.0])
    close(by_visit[1], [(3.0 - 1.0) / (math.sqrt(2.0) + 1e-6), 0.0])
    # Means 1 and 1.5, deviations 1.41 and 2.12.
    close(by_visit[2], [(2.5 - 1.25) / (np.median([math.sqrt(2.0), 3.0 / math.sqrt(2.0)]) + 1e-6), 0.0])


def test_greedy_baseline() -> None:
    batch = small(
        [(0, [3]), (0, [2])],
        draw_score=[2.0, 1.0],
        draw_greedy=[0, 1],
        token_reference_logprob=[-1.0, -1.0, -3.0, -1.0, -1.0],
    )
    result = GreedyRelative(gamma=0.99)(batch)
    close(column(result, level="token"), [0.970299, 0.9801, 0.99, 0.0, 0.0])
    assert not result.has("keep", "draw")
    assert column(FlagFilter(flags="greedy", level="draw")(result), "keep") == [1.0, 0.0]
    priced = GreedyRelative(gamma=0.99, kl_coefficient=0.05)(batch)
    close(column(priced, level="token"), [0.970299, 0.9801, 0.99 - 0.05 * 2.0, 0.0, 0.0])
    close(column(GreedyRelative(at_most=0.5)(batch), level="token")[:3], [0.5] * 3)
    with pytest.raises(InvalidInputError, match="draw 0 is in a group without a greedy draw"):
        GreedyRelative()(batch.with_columns("draw", greedy=np.array([0, 0])))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (BaselineRelative, "column='' is not possible; name a column"),
        (lambda: BaselineRelative(kind="log_mean_exp", column="x"), "column='x'"),
        (lambda: BaselineRelative(column="x", leave_one_out=True), "leave_one_out=True"),
        (lambda: BaselineRelative(column="x", singleton="raw"), "singleton='raw'"),
        (lambda: TrackedBaseline(decay=1.5), "decay=1.5"),
        (lambda: TrackedBaseline(kind="ema", adapt="window"), "adapt='window'"),
        (lambda: TrackedBaseline(update="before"), "update='before'"),
        (lambda: TrackedBaseline(scale="window"), "scale='window'"),
        (lambda: TrackedBaseline(adapt="window", decay=0.5), "decay_at_least=0.875"),
        (lambda: GreedyRelative(kl_coefficient=-1.0), "kl_coefficient=-1.0"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
