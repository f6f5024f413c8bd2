"""SAFE's controller, by hand."""

from __future__ import annotations

import pytest

from agentrl_core.recipes.safe import PredictivePenalty


def prices(price: PredictivePenalty, *measured: tuple[float, float, float]) -> list[float]:
    state, values = price.initial_state(), []
    for numbers in measured:
        state = price.moved(state, dict(zip(price.reads, numbers, strict=True)))
        values.append(price.value(state))
    return values


def test_the_threshold_follows_the_reward() -> None:
    # First: kl = 0.1 * 5, threshold 0.3 * 1.5 = 0.45, gate 2/(0.9 + 0.1) = 2: 0.2 * 0.05 * 2.
    # Then kl = 0.9 * 0.5 + 0.1 * 1 = 0.55; the average 0 -> 0.05: e = 0.049, I = 0.049, change 0.049:
    # (0.3 + 0.3 * 0.049 + 0.01 * 0.049 + 0.05 * 0.049) 1.5 = 0.47646; gate 2/4 = 0.5.
    # Then kl = 0.595; the average 0.05 -> 0.0975: e = 0.0465, I = 0.0955, change -0.0025:
    # (0.3 + 0.01395 + 0.000955 - 0.000125) 1.5 = 0.47217; entropy 9.9: gate at least 0.5.
    values = prices(PredictivePenalty(), (5.0, 0.9, 0.0), (1.0, 3.9, 1.0), (1.0, 9.9, 1.0))
    assert values == pytest.approx([0.02, 0.2 * 0.07354 * 0.5, 0.2 * 0.12283 * 0.5])


@pytest.mark.parametrize(
    ("rewards", "phase"),
    [
        ((0.5,), 1.5),
        ((0.5, 0.6), 0.8),  # no older window yet
        ((0.5, 0.5, 0.6, 0.6), 1.2),
        ((0.5, 0.5, 0.5, 0.6, 0.6), 1.2),  # of 0.5, 0.5 and 0.6, 0.6
        ((0.8, 0.8), 1.0),
        ((0.1, 0.9, 0.8, 0.8), 1.2),
        ((0.8, 0.8, 0.8, 0.8), 1.0),
        ((0.5, 0.5, 0.5, 0.5), 0.8),
        ((0.9, 0.9, 0.5, 0.5), 0.8),
    ],
)
def test_phases(rewards: tuple[float, ...], phase: float) -> None:
    assert PredictivePenalty(window=2)._phase(list(rewards[-4:])) == phase


def test_below_the_threshold_it_is_as_good_as_nothing() -> None:
    assert prices(PredictivePenalty(), (0.4, 1.9, 0.5)) == [1e-8]
