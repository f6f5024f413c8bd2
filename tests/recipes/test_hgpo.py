"""Compare HGPO's histories of states with a loop."""

from __future__ import annotations

import numpy as np
import pytest
from compared import close, column
from rollouts import Draw, plain, ragged, small

from agentrl_core import Batch
from agentrl_core.advantage import Discounted, Normalisation
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.hgpo import HistoryRelative


def returns_of(draw: Draw, gamma: float) -> list[float]:
    rewards = [step.reward if np.isfinite(step.reward) else 0.0 for step in draw.steps]
    return [sum(gamma ** (j - t) * rewards[j] for j in range(t, len(rewards))) for t in range(len(rewards))]


def compared(value: float, votes: list[float]) -> float:
    return 0.0 if max(votes) == min(votes) else float((value - np.mean(votes)) / (np.std(votes) + 1e-6))


def steps(component: HistoryRelative, batch: Batch, gamma: float) -> list[float]:
    return column(component(Discounted(gamma=gamma)(batch)), level="step")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_histories_of_states(seed: int, power: float) -> None:
    batch = ragged(seed, groups=8)
    draws = plain(batch)
    levels = 3
    clusters: dict[tuple, list[float]] = {}
    for draw in draws:
        for t, value in enumerate(returns_of(draw, 0.9)):
            for k in range(1, min(levels, t + 1) + 1):
                states = tuple(step.state for step in draw.steps[t + 1 - k : t + 1])
                if draw.valid:
                    clusters.setdefault((draw.group, k, states), []).append(value)
    expected = []
    for draw in draws:
        for t, value in enumerate(returns_of(draw, 0.9)):
            parts = []
            for k in range(1, min(levels, t + 1) + 1):
                votes = clusters.get((draw.group, k, tuple(s.state for s in draw.steps[t + 1 - k : t + 1])), [])
                if draw.valid and len(votes) > 1:
                    parts.append((k**power, compared(value, votes)))
            expected.append(sum(w * a for w, a in parts) / sum(w for w, _ in parts) if parts else 0.0)
    close(steps(HistoryRelative(levels=levels, level_power=power), batch, 0.9), expected)
    assert any(expected)


def test_absent_levels() -> None:
    # At level 1 all four steps agree; at level 2 the last ones do, with equal returns: advantage 0 in a group of
    # several.
    draws = [(0, [1, 1]), (0, [1, 1])]
    batch = small(draws, draw_score=[0.0, 0.0], step_reward=[0.0, 1.0, 1.0, 1.0], step_place=[7, 7, 7, 7])
    options = {"anchor": "place", "levels": 2, "normalisation": Normalisation(scale="none")}
    # Level 1: mean .75. Level 2 of the last steps: 0, weight 2/3 if it counts.
    close(steps(HistoryRelative(**options), batch, 0.0), [-0.75, 0.25 / 3, 0.25, 0.25 / 3])
    close(steps(HistoryRelative(**options, state_weight=2.0), batch, 0.0), [-0.75, 0.1, 0.25, 0.1])
    close(steps(HistoryRelative(**options, absent="zero"), batch, 0.0), [-0.75, 0.25, 0.25, 0.25])


def test_options_out_of_range() -> None:
    with pytest.raises(RecipeError, match="levels=0"):
        HistoryRelative(levels=0)
    with pytest.raises(RecipeError, match="anchor=''"):
        HistoryRelative(anchor="")
