"""Components with other baselines, with a memory, with votes, and with softmax weights, against loops and fixtures."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from rollouts import plain, ragged, small

from agentrl_core import Batch
from agentrl_core.advantage import (
    BaselineRelative,
    ChecklistRelative,
    Consistency,
    CumulativeStandardised,
    GreedyRelative,
    Normalisation,
    Refinement,
    SoftmaxScaled,
    TailRisk,
    TrackedBaseline,
)
from agentrl_core.component.component import StatefulComponent
from agentrl_core.exceptions import InvalidInputError, RecipeError


def column(batch: Batch, name: str = "advantage", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(found: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def visits(component: StatefulComponent, *scores: list[float], **columns: list[float]) -> list[list[float]]:
    """What one group gets in batch after batch; the state goes through JSON in between."""
    state: dict[str, object] = {}
    out = []
    for row in scores:
        batch = small([(0, [1])] * len(row), draw_score=row, **columns).with_state(state)
        made = component(batch)
        state = json.loads(json.dumps(made.state))
        out.append(column(made))
    return out


def test_a_column_as_baseline() -> None:
    batch = small([(0, [1])] * 3, draw_score=[1.0, 0.0, math.nan], draw_value=[0.25, 0.25, 0.25])
    close(column(BaselineRelative(column="value")(batch)), [0.75, -0.25, 0.0])
    close(column(BaselineRelative(column="value", positive_only=True, clip=0.5)(batch)), [0.5, 0.0, 0.0])


def test_baseline_by_length() -> None:
    batch = small([(0, [10]), (0, [30]), (1, [5])], draw_score=[1.0, 0.0, 1.0])
    close(column(BaselineRelative(baseline="weighted", column="trained_tokens")(batch)), [0.75, -0.25, 0.0])


@pytest.mark.parametrize("baseline", ["weighted", "log_mean_exp"])
def test_a_group_of_one_may_get_its_score(baseline: str) -> None:
    batch = small([(0, [2]), (1, [1]), (1, [3]), (2, [1]), (2, [1])], draw_score=[3.0, 1.0, 1.0, 2.0, math.nan])
    options = {"baseline": baseline, "column": "trained_tokens" if baseline == "weighted" else ""}
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
    ours = BaselineRelative(baseline="weighted", column="trained_tokens", singleton="raw")(batch)
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
    component = BaselineRelative(baseline="weighted", column="w", leave_one_out=leave_one_out)
    close(column(component(batch.with_columns("draw", w=weights))), expected)


@pytest.mark.parametrize(
    ("scores", "variance", "prior", "baseline"),
    [([1, 1, -1, 1], 1.0, -0.5, 0.25), ([1, 1, -1, 1], 1.0, 0.5, 0.5), ([1, 1, 0, 1], 0.25, 0.0, 2 / 3)],
)
def test_shrunk_baseline(scores: list[float], variance: float, prior: float, baseline: float) -> None:
    batch = small([(0, [1])] * 4, draw_score=[float(score) for score in scores], draw_prior=[prior] * 4)
    found = column(BaselineRelative(baseline="shrunk", column="prior", variance=variance)(batch))
    close(found, np.array(scores) - baseline, 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_a_draw_does_not_vote_in_its_own_shrunk_baseline(seed: int) -> None:
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
    component = BaselineRelative(baseline="shrunk", column="prior", leave_one_out=True)
    close(column(component(batch.with_columns("draw", prior=[prior[draw.group] for draw in draws]))), expected)


def test_log_mean_exp_baseline() -> None:
    batch = small([(0, [1])] * 4, draw_score=[0.0, 0.0, 1.0, 1.0])
    close(column(BaselineRelative(baseline="log_mean_exp")(batch)), np.array([0, 0, 1, 1]) - 0.716890, 1e-6)


def test_tracked_success_rate() -> None:
    found = visits(TrackedBaseline(decay=0.5), [1.0, 0.0, 1.0], [1.0, math.nan])
    close(found[0], [0.5, -0.5, 0.5])
    # alpha 2, beta 1.
    close(found[1], [1.0 - 2 / 3, 0.0])


def test_the_more_the_policy_moves_the_sooner_it_forgets() -> None:
    scores = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    component = TrackedBaseline(decay=0.9, adapt="window", decay_min=0.5, kl_target=0.1)
    found = visits(component, *scores, draw_policy_kl=[0.05, 0.05])
    decay = 0.9 - 0.4 * 0.5
    alpha, beta = 1.0 * decay + 2.0, 1.0 * decay
    close(found[2], [-alpha / (alpha + beta)] * 2)


def test_what_moved_since_a_task_was_visited_decides_how_much_of_it_is_kept() -> None:
    component = TrackedBaseline(adapt="since_visit", decay=0.9, decay_min=0.3, kl_target=0.1)
    state: dict[str, object] = {}
    found = []
    # Task 0 moves by 0.1 in the mean (half is kept), task 1 by so much that the least is kept, task 2 hardly.
    for scores, moved in (
        ([1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]),
        ([0.0, 0.0, 0.0, 0.0], [0.05, 0.15, 9.0, 0.001]),
        ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, math.nan]),
    ):
        batch = small([(0, [1]), (0, [1]), (1, [1]), (2, [1])], draw_score=scores, draw_policy_kl=moved)
        made = component(batch.with_state(state))
        state = json.loads(json.dumps(made.state))
        found.append(column(made))
    close(found[1], [-0.5, -0.5, -1.0, -1.0])
    close(found[2], [-0.5 / (0.5 + 2.5)] * 2 + [-0.3 / 1.3, -0.9 / 1.9])


def test_moving_mean_by_role() -> None:
    # Role 1 moves by its own rewards.
    scores = [[1.0, 3.0], [1.0, 3.0]]
    after = TrackedBaseline(tracker="ema", key="role", decay=0.5, initial=0.0)
    close(visits(after, *scores, draw_role=[0, 1]), [[1.0, 3.0], [0.5, 1.5]])
    before = TrackedBaseline(tracker="ema", key="role", decay=0.5, initial=0.0, update="before")
    close(visits(before, *scores, draw_role=[0, 1]), [[0.5, 1.5], [0.25, 0.75]])


def test_window_of_group_means() -> None:
    component = TrackedBaseline(tracker="window", positive_only=True, scale="window")
    found = visits(component, [0.0, 2.0], [3.0, 0.0], [2.5, 1.0])
    close(found[0], [0.0, 0.0])
    close(found[1], [(3.0 - 1.0) / (math.sqrt(2.0) + 1e-6), 0.0])
    # Means 1 and 1.5, deviations 1.41 and 2.12.
    close(found[2], [(2.5 - 1.25) / (np.median([math.sqrt(2.0), 3.0 / math.sqrt(2.0)]) + 1e-6), 0.0])


def test_cumulative_statistics() -> None:
    found = visits(CumulativeStandardised(), [0.0, 0.0, 1.0, 1.0], [1.0] * 4, [0.0, 1.0, 1.0, 1.0])
    close(found[0], [-0.866025, -0.866025, 0.866025, 0.866025], 1e-6)
    close(found[1], [0.261116] * 4, 1e-6)
    close(found[2], [-1.514496, 0.504832, 0.504832, 0.504832], 1e-6)


def test_greedy_baseline() -> None:
    batch = small(
        [(0, [3]), (0, [2])],
        draw_score=[2.0, 1.0],
        draw_greedy=[0, 1],
        token_reference_logprob=[-1.0, -1.0, -3.0, -1.0, -1.0],
    )
    found = GreedyRelative(gamma=0.99)(batch)
    close(column(found, level="token"), [0.970299, 0.9801, 0.99, 0.0, 0.0])
    assert column(found, "keep") == [1.0, 0.0]
    priced = GreedyRelative(gamma=0.99, kl=0.05)(batch)
    close(column(priced, level="token"), [0.970299, 0.9801, 0.99 - 0.05 * 2.0, 0.0, 0.0])
    close(column(GreedyRelative(clip=0.5)(batch), level="token")[:3], [0.5] * 3)
    kept = GreedyRelative()(batch.with_columns("draw", keep=np.array([0, 1], np.uint8)))
    assert column(kept, "keep") == [0.0, 0.0]
    with pytest.raises(InvalidInputError, match="draw 0 is in a group without a greedy draw"):
        GreedyRelative()(batch.with_columns("draw", greedy=np.array([0, 0])))


def test_tail_of_bundles() -> None:
    # Six papers of one group each: s = 0..5, whose own quantiles are 1 and 4.
    batch = small([(0, [1])] * 6, draw_score=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    component = TailRisk(bundle=1, low=0.2, high=0.8, quantiles="batch", scale="none", credit="uniform")
    close(column(component(batch)), [-5.0, -2.0, -4 / 3, -2 / 3, 0.0, 0.0], 1e-6)
    spread = np.std([0, 1, 2, 3, 4, 5], ddof=1) + 1e-6
    close(column(TailRisk(bundle=1, low=0.2, high=0.8, credit="uniform")(batch))[0], -5.0 / spread)


def test_the_upper_tail_of_bundles() -> None:
    batch = small([(0, [1])] * 6, draw_score=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    options = {"bundle": 1, "low": 0.2, "high": 0.8, "quantiles": "batch", "scale": "none", "credit": "uniform"}
    daring = TailRisk(tail="upper", natural_baseline=False, **options)
    middle = np.array([0.0, 0.0, 1.0, 2.0, 3.0, 3.0]) / 0.6
    close(column(daring(batch)), (1.5 * np.array([0, 0, 0, 0, 0, 1]) / 0.2 + middle) / 2.5, 1e-6)


@pytest.mark.parametrize("natural", [False, True])
def test_the_curve_of_tracked_quantiles_as_a_baseline(natural: bool) -> None:
    options = {"bundle": 1, "low": 0.2, "high": 0.8, "scale": "none", "credit": "uniform", "rate": 0.5}
    component = TailRisk(curve_baseline=True, natural_baseline=natural, **options)
    scores = [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 2.0, 7.0, 0.0, 1.0, 3.0]]
    found = visits(component, *scores)
    levels = np.arange(1, 20) / 20
    curve = np.quantile(scores[0], levels)
    for own, made in zip(scores, found, strict=True):
        low, high = curve[3], curve[15]

        def terms(s: np.ndarray, low: float = low, high: float = high) -> np.ndarray:
            return np.stack([-np.maximum(low - s, 0), np.maximum(s - low, 0) - np.maximum(s - high, 0)])

        mean = np.trapezoid(terms(curve), levels, axis=1) / (levels[-1] - levels[0])
        tail, middle = terms(np.array(own)) - mean[:, None]
        close(made, (1.5 * tail / 0.2 + middle / 0.6) / 2.5, 1e-6)
        moved = curve + 0.5 * (levels - [np.mean(np.array(own) < q) for q in curve])
        curve = np.sort(moved)


@pytest.mark.parametrize("credit", ["uniform", "score", "std", "sum_mean"])
@pytest.mark.parametrize("seed", range(3))
def test_tail_risk(seed: int, credit: str) -> None:
    batch = ragged(seed, groups=5)
    draws = plain(batch)
    groups = [[draw for draw in draws if draw.group == g and draw.valid] for g in sorted({d.group for d in draws})]
    expected = np.zeros(len(draws))
    for start in range(0, len(groups), 2):
        bundle = groups[start : start + 2]
        papers = list(zip(*bundle, strict=False))
        sums = [sum(draw.score for draw in paper) for paper in papers]
        if not papers:
            continue
        low, high = np.quantile(sums, 0.2), np.quantile(sums, 0.9)
        scale = (np.std(sums, ddof=1) if len(sums) > 1 else 1.0) + 1e-6
        used = [[draw.score for draw in part[: len(papers)]] for part in bundle]
        for paper, s in zip(papers, sums, strict=True):
            middle = (max(s - low, 0) - max(s - high, 0) + low - high) / 0.7
            value = (1.5 * -max(low - s, 0) / 0.2 + middle) / 2.5 / scale
            gains = [draw.score - np.mean(own) for draw, own in zip(paper, used, strict=True)]
            for draw, own, gain in zip(paper, used, gains, strict=True):
                spread = np.std(own, ddof=1) if len(own) > 1 else 0.0
                share = {
                    "uniform": 1.0,
                    "score": 0.5 if draw.score > 0 else 1.5,
                    "std": 1.0 / (spread if spread > 1e-3 else 1.0),
                    "sum_mean": gain / sum(gains) if abs(sum(gains)) > 1e-8 else 1.0 / len(paper),
                }[credit]
                expected[draw.row] = value * share
    close(column(TailRisk(bundle=2, quantiles="batch", credit=credit)(batch)), expected, 1e-4)


def test_tracked_quantiles_are_read_before_they_move() -> None:
    component = TailRisk(bundle=1, low=0.5, high=1.0, scale="none", credit="uniform", omega=1e9, rate=0.5)
    found = visits(component, [0.0, 1.0, 2.0], [0.0, 1.0, 4.0])
    # The first batch reads its own median. Then the quantiles at .5 and .55, which were 1 and 1.1, move past each
    # other; the second batch reads them in order.
    close(found[0], [-2.0, 0.0, 0.0], 1e-6)
    moved = min(1.0 + 0.5 * (0.5 - 1 / 3), 1.1 + 0.5 * (0.55 - 2 / 3))
    close(found[1], [-2.0 * moved, -2.0 * (moved - 1.0), 0.0], 1e-6)


@pytest.mark.parametrize(
    ("answers", "share"),
    [([0] * 6, 0.00669), ([0, 0, 0, 1, 1, 1], 0.5), ([0, 0, 0, 0, 1, 2], 0.77871), ([0, 1, 2, 3, 4, 5], 0.99964)],
)
def test_agreement_decides_between_local_and_global(answers: list[int], share: float) -> None:
    scores = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    batch = small(
        [(0, [1])] * 6 + [(1, [1])],
        draw_score=[*scores, 0.0],
        draw_answer_cluster=[*answers, 9],
        draw_answer_parsed=[1] * 7,
    )
    plain_ = {"normalisation": Normalisation(scale="none")}
    local = np.array([*(np.array(scores) - 0.5), 0.0])
    everyone = np.array([0.25] * 6 + [-0.25])
    expected = (1 - share) * everyone[:6] + share * local[:6]
    found = Consistency(mode="soft", **plain_)(batch)
    close(column(found)[:6], expected, 1e-4)
    positive = (1 - share) * np.maximum(everyone, 0) + share * np.maximum(local, 0)
    close(column(found, "advantage_positive")[:6], positive[:6], 1e-4)
    close(np.array(column(found, "advantage_positive")) + column(found, "advantage_negative"), column(found))
    with_zero = np.where(np.array(scores) == 0.0, everyone[:6], expected)
    close(column(Consistency(**plain_)(batch))[:6], with_zero, 1e-4)
    close(column(Consistency(mode="local", **plain_)(batch)), local)
    close(column(Consistency(mode="global", **plain_)(batch)), everyone)
    forced = column(Consistency(mode="soft_with_forced", **plain_)(batch))
    close(forced[6], -0.25)
    bits = -sum(p * math.log2(p) for p in np.bincount(answers)[np.bincount(answers) > 0] / 6)
    mean = 0.5 * (1.0 - (1 - 1 / 6) / math.log2(6) * bits)
    weighted = column(Consistency(mode="global", coefficient="entropy", **plain_)(batch))
    close(weighted[0], mean / 2)


def test_refined_rollouts() -> None:
    batch = small(
        [(0, [1])] * 6,
        draw_score=[1.0, 3.0, 2.0, 3.0, 5.0, math.nan],
        draw_refined=[0, 0, 1, 1, 1, 1],
        draw_success=[1, 1, 1, 0, 1, 1],
    )
    # Means: 2 of the plain ones, 10/3 of the refined.
    close(column(Refinement()(batch)), [-1 / math.sqrt(2), 1 / math.sqrt(2), 0.0, 0.0, 1.0, 0.0])


def test_softmax_of_advantage_and_entropy() -> None:
    batch = small([(0, [1])] * 3, draw_score=[0.0] * 3, draw_advantage=[1.0, -1.0, 0.0], token_entropy=[0.5, 1.0, 2.0])
    close(column(SoftmaxScaled()(batch)), [0.637069, -0.090638, 0.0], 1e-6)
    close(column(SoftmaxScaled(rescale_mean_one=True)(batch)), [3 * 0.637069, -3 * 0.090638, 0.0], 1e-5)


def test_items_of_checklists() -> None:
    # Two draws of one turn with two steps; item 0 exists in all, item 1 not.
    batch = small(
        [(0, [1, 1]), (0, [1, 1])],
        draw_score=[1.0, 0.0],
        step_turn=[0] * 4,
        **{
            "step_satisfied.0": [0.0, 1.0, 0.0, 0.0],
            "step_item_weight.0": [2.0] * 4,
            "step_item_reward.0": [1.0, 1.0, 0.0, 0.0],
            "step_item_eligible.0": [1, 1, 1, 1],
            "step_satisfied.1": [math.nan] * 4,
            "step_item_weight.1": [math.nan] * 4,
            "step_item_reward.1": [0.0] * 4,
            "step_item_eligible.1": [0] * 4,
        },
    )
    component = ChecklistRelative(items=2, min_count=2)
    close(column(component(batch), level="step"), [0.5, 0.5, -0.5, -0.5])
    close(column(ChecklistRelative(items=2, min_count=3)(batch), level="step"), [0.0] * 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (BaselineRelative, "column='' is not possible; name a column"),
        (lambda: BaselineRelative(baseline="log_mean_exp", column="x"), "column='x'"),
        (lambda: BaselineRelative(column="x", leave_one_out=True), "leave_one_out=True"),
        (lambda: BaselineRelative(column="x", singleton="raw"), "singleton='raw'"),
        (lambda: TrackedBaseline(decay=1.5), "decay=1.5"),
        (lambda: TrackedBaseline(tracker="ema", adapt="window"), "adapt='window'"),
        (lambda: TrackedBaseline(update="before"), "update='before'"),
        (lambda: TrackedBaseline(scale="window"), "scale='window'"),
        (lambda: TrackedBaseline(adapt="window", decay=0.5), "decay_min=0.875"),
        (lambda: GreedyRelative(kl=-1.0), "kl=-1.0"),
        (lambda: TailRisk(low=0.9), "low=0.9"),
        (lambda: TailRisk(high=1.1), "high=1.1"),
        (lambda: TailRisk(high=1.0, tail="upper"), "high=1.0"),
        (lambda: ChecklistRelative(items=0), "items=0"),
        (lambda: CumulativeStandardised(ddof=2), "ddof=2"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
