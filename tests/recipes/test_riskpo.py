"""RiskPO: compare bundles of tasks, tracked quantiles and shares of draws with loops and with numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
from compared import close, column, visits
from rollouts import plain, ragged, small

from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.riskpo import TailRisk


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
    options = {"bundle": 1, "low": 0.2, "high": 0.8, "scale": "none", "credit": "uniform", "step_size": 0.5}
    component = TailRisk(curve_baseline=True, natural_baseline=natural, **options)
    scores = [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 2.0, 7.0, 0.0, 1.0, 3.0], [1.0, 2.0, 6.0, 0.0, 1.0, 3.0]]
    advantages = visits(component, *scores)
    levels = np.arange(1, 20) / 20
    curve = np.quantile(scores[0], levels)
    for visit, (values, advantage) in enumerate(zip(scores, advantages, strict=True)):
        low, high = curve[3], curve[15]

        def terms(s: np.ndarray, low: float = low, high: float = high) -> np.ndarray:
            return np.stack([-np.maximum(low - s, 0), np.maximum(s - low, 0) - np.maximum(s - high, 0)])

        mean = np.trapezoid(terms(curve), levels, axis=1) / (levels[-1] - levels[0])
        tail, middle = terms(np.array(values)) - mean[:, None]
        close(advantage, (1.5 * tail / 0.2 + middle / 0.6) / 2.5, 1e-6)
        moved = curve + 0.5 * (levels - [np.mean(np.array(values) < q) for q in curve])
        curve = np.sort(moved) if visit else curve


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
        bundle_scores = [[draw.score for draw in part] for part in bundle]
        for paper, s in zip(papers, sums, strict=True):
            middle = (max(s - low, 0) - max(s - high, 0) + low - high) / 0.7
            value = (1.5 * -max(low - s, 0) / 0.2 + middle) / 2.5 / scale
            gains = [draw.score - np.mean(scores) for draw, scores in zip(paper, bundle_scores, strict=True)]
            for draw, scores, gain in zip(paper, bundle_scores, gains, strict=True):
                spread = np.std(scores, ddof=1) if len(scores) > 1 else 0.0
                share = {
                    "uniform": 1.0,
                    "score": 0.5 if draw.score > 0 else 1.5,
                    "std": 1.0 / (spread if spread > 1e-3 else 1.0),
                    "sum_mean": gain / sum(gains) if abs(sum(gains)) > 1e-8 else 1.0 / len(paper),
                }[credit]
                expected[draw.row] = value * share
    close(column(TailRisk(bundle=2, quantiles="batch", credit=credit)(batch)), expected, 1e-4)


def test_tracked_quantiles_are_read_before_they_move() -> None:
    component = TailRisk(bundle=1, low=0.5, high=1.0, scale="none", credit="uniform", omega=1e9, step_size=0.5)
    advantages = visits(component, [0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0.0, 1.0, 4.0])
    # The first two batches read the median of the first. Then the quantiles at .5 and .55, which were 1 and 1.1, move
    # past each other; the third batch reads them in order.
    close(advantages[:2], [[-2.0, 0.0, 0.0]] * 2, 1e-6)
    moved = min(1.0 + 0.5 * (0.5 - 1 / 3), 1.1 + 0.5 * (0.55 - 2 / 3))
    close(advantages[2], [-2.0 * moved, -2.0 * (moved - 1.0), 0.0], 1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TailRisk(low=0.9), "low=0.9"),
        (lambda: TailRisk(high=1.1), "high=1.1"),
        (lambda: TailRisk(high=1.0, tail="upper"), "high=1.0"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
