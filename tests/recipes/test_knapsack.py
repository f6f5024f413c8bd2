"""Compare Knapsack RL's numbers of rollouts with a knapsack by dynamic programming."""

from __future__ import annotations

import numpy as np
import pytest
from pools import Story

from agentrl_core.recipes import KNAPSACK
from agentrl_core.select import ComposedSelector, GreedyAllocator


def value(n: int, p: float) -> float:
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


def knapsack(rates: list[float], total: int, low: int, high: int) -> float:
    """Return the largest total value of any numbers of rollouts."""
    best = {0: 0.0}
    for rate in rates:
        following: dict[int, float] = {}
        for cost, worth in best.items():
            for n in range(low, high + 1):
                if cost + n <= total:
                    following[cost + n] = max(following.get(cost + n, -1.0), worth + value(n, rate))
        best = following
    return max(best.values())


@pytest.mark.parametrize("seed", range(20))
def test_no_knapsack_is_worth_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = rng.choice([0.0, 0.1, 0.3, 0.5, 0.8, 1.0], 6)
    counts = GreedyAllocator(low=2, high=20).counts({}, {"estimate": rates}, 48)
    total = sum(value(int(n), float(p)) for n, p in zip(counts, rates, strict=True))
    assert total == pytest.approx(knapsack(rates.tolist(), 48, 2, 20))


def test_only_the_last_visit_counts() -> None:
    select, story = KNAPSACK.select, Story()
    assert isinstance(select, ComposedSelector)
    assert isinstance(select.count, GreedyAllocator)
    track = select.track
    state = track.next(track.initial_state(), story.visits(0, {0: [1, 1], 1: [0, 0], 2: [1, 0]}))
    state = track.next(state, story.visits(1, {0: [1, 0, 0, 0]}))
    rates = track.estimate(state, story.candidates([0, 1, 2, 3], 2))
    assert rates.tolist() == [0.25, 0.0, 0.5, 0.5]
    # p = 1/4: w = 9/64, gains of n + 1: w (p^n (1-p) + (1-p)^n p) = 0.02637, 0.01648, 0.01154, 0.00846, ...
    # p = 1/2: w = 1/8, gains 0.03125, 0.015625, 0.0078125, ... For 20 rollouts 12 remain after 2 each:
    # 0.03125 x2, 0.02637, 0.01648, 0.015625 x2, 0.01154, 0.00846, 0.0078125 x2, 0.00630, 0.00472 (or 0.0039).
    assert select.count.counts({}, {"estimate": rates}, 20).tolist() == [8, 2, 5, 5]
    # All equal at first: the total is split evenly.
    assert select.count.counts({}, {"estimate": np.full(4, 0.5)}, 32).tolist() == [8, 8, 8, 8]
    # Rollouts that gain at most 1e-4 go to the task that was not solved.
    assert select.count.counts({}, {"estimate": np.array([1.0, 0.0])}, 16).tolist() == [2, 14]
