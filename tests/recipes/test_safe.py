"""SAFE's controller, by hand."""

from __future__ import annotations

import pytest

from agentrl_core.recipes.safe import PredictivePenalty


def prices(price: PredictivePenalty, *measured: tuple[float, float, float]) -> list[float]:
    state, found = price.initial_state(), []
    for numbers in measured:
        state = price.moved(state, dict(zip(price.reads, numbers, strict=True)))
        found.append(price.value(state))
    return found


def test_the_threshold_follows_the_reward() -> None:
    # First: threshold 0.3 * 1.5 = 0.45, gate 2/(0.9 + 0.1) = 2: 0.2 * 0.05 * 2.
    # Then kl = 0.9 * 0.5 + 0.1 * 1 = 0.55; the average 0 -> 0.05: e = 0.049, I = 0.049, no change yet:
    # (0.3 + 0.3 * 0.049 + 0.01 * 0.049) 1.5 = 0.472785; gate 2/4 = 0.5.
    # Then kl = 0.595; the average 0.05 -> 0.0975: e = 0.0465, I = 0.0955, change -0.0025:
    # (0.3 + 0.01395 + 0.000955 - 0.000125) 1.5 = 0.47217; entropy 9.9: gate at least 0.5.
    found = prices(PredictivePenalty(), (0.5, 0.9, 0.0), (1.0, 3.9, 1.0), (1.0, 9.9, 1.0))
    assert found == pytest.approx([0.02, 0.2 * 0.077215 * 0.5, 0.2 * 0.12283 * 0.5])


@pytest.mark.parametrize(
    ("rewards", "phase"),
    [((0.5,), 1.5), ((0.5, 0.6), 1.2), ((0.8, 0.8), 1.0), ((0.5, 0.5), 0.8), ((0.9, 0.5), 0.8)],
)
def test_phases(rewards: tuple[float, ...], phase: float) -> None:
    # The last threshold, from what the rewards did: e = 0.05 (second - first) - 0.001.
    error = 0.05 * (rewards[-1] - rewards[0]) - 0.001 if len(rewards) > 1 else 0.0
    threshold = (0.3 + 0.31 * error) * phase
    found = prices(PredictivePenalty(window=2), *((1.0, 1.9, reward) for reward in rewards))
    assert found[-1] == pytest.approx(0.2 * (1.0 - threshold))


def test_below_the_threshold_it_is_as_good_as_nothing() -> None:
    assert prices(PredictivePenalty(), (0.4, 1.9, 0.5)) == [1e-8]
