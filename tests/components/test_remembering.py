"""Components that weigh difficulty and constraints by what they remember, against loops and numbers by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from rollouts import small

from agentrl_core import Batch
from agentrl_core.advantage import ConstrainedSum, Normalisation
from agentrl_core.component.component import StatefulComponent
from agentrl_core.exceptions import RecipeError
from agentrl_core.weight import DifficultyScaled


def column(batch: Batch, name: str = "score", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(found: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def run(component: StatefulComponent, batches: Sequence[Batch]) -> list[Batch]:
    """Batch after batch, each with the state after it, which goes through JSON in between."""
    state = component.initial_state()
    made = []
    for batch in batches:
        closed = component.add_columns(state, batch)
        state = json.loads(json.dumps(component.next(state, closed)))
        made.append(closed.with_state({f"{component.phase}.{type(component).__name__}": state}))
    return made


# Difficulty


def lossy(losses: list[float], success: list[int], groups: list[int]) -> Batch:
    return small(
        [(group, [1]) for group in groups],
        draw_score=[0.0] * len(groups),
        draw_policy_loss=losses,
        draw_success=success,
    )


def test_difficulty_by_hand() -> None:
    component = DifficultyScaled(bins=4, smoothing=0.5, rate=1.0, limit=1.0, hysteresis=0.0)
    first = lossy([1.0, 3.0, 4.0], [0, 0, 1], [0, 0, 1])
    second = lossy([2.0, 2.0, 6.0], [0, 0, 1], [0, 0, 1])
    made = run(component, [first, second])
    # Both tasks are new, hence in bin 2: S = 0.5 (2 + 4) / 2 = 1.5, of which 1 counts.
    close(column(made[0], "weight"), [math.e] * 3)
    assert made[0].state["weight.DifficultyScaled"] == {
        "visits": {"task 0": [0], "task 1": [1]},
        "bins": {"task 0": 0, "task 1": 3},
        "scores": [0.0, 0.0, 1.5, 0.0],
    }
    # Now they are in bins 0 and 3, with S = 1 and 3.
    close(column(made[1], "weight"), [math.e] * 3)
    shares = run(DifficultyScaled(bins=4, smoothing=0.5, rate=0.1, by="share", hysteresis=0.0), [first, second])
    close(shares[1].state["weight.DifficultyScaled"]["scores"], [2.0, 0.0, 1.5, 6.0])
    close(column(shares[1], "weight"), [math.exp(0.2)] * 2 + [math.exp(0.3)])
    likely = run(DifficultyScaled(bins=2, smoothing=1.0, rate=0.5, weighing="probability", explore=0.2), [first])
    weights = np.exp([0.0, 1.5])
    close(column(likely[0], "weight"), [2 * (0.8 * weights[1] / weights.sum() + 0.1)] * 3)
    capped = DifficultyScaled(bins=2, smoothing=1.0, rate=1.0, most=2.0)(first)
    assert column(capped, "weight") == [2.0] * 3


def test_a_task_changes_its_bin_only_well_beyond_the_border() -> None:
    component = DifficultyScaled(bins=2, hysteresis=0.1, history=5)
    outcomes = [1, 0, 1, 0, 0, 0, 0, 1, 1, 1]
    made = run(component, [lossy([0.0], [won], [0]) for won in outcomes])
    places = [batch.state["weight.DifficultyScaled"]["bins"]["task 0"] for batch in made]
    # Shares: 1, 1/2, 2/3, 1/2, 2/5, 1/5 (of the last five), 1/5, 1/5, 2/5, 3/5.
    assert places == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert made[-1].state["weight.DifficultyScaled"]["visits"]["task 0"] == [0, 0, 1, 1, 1]


def test_what_is_not_known_of_difficulty_changes_nothing() -> None:
    batch = lossy([1.0, math.nan, 5.0], [1, 1, 1], [0, 1, 2])
    batch = batch.with_columns("draw", score=[0.0, 0.0, math.nan], weight=[1.0, 1.0, 7.0])
    (made,) = run(DifficultyScaled(bins=2, smoothing=1.0, rate=1.0), [batch])
    # The loss of task 1 is not known, and it is in the same bin; task 2 has no score.
    close(column(made, "weight"), [math.e, math.e, 7.0])
    state = made.state["weight.DifficultyScaled"]
    assert state["visits"] == {"task 0": [1], "task 1": [1]}
    for options, message in (
        ({"bins": 0}, "bins=0"),
        ({"history": 0}, "history=0"),
        ({"smoothing": 2.0}, "smoothing=2.0"),
        ({"limit": 0.0}, "limit=0.0"),
        ({"most": 0.0}, "most=0.0"),
        ({"rate": -1.0}, "rate=-1.0"),
        ({"key": ""}, "key=''"),
    ):
        with pytest.raises(RecipeError, match=message):
            DifficultyScaled(**options)


# Constraints


def test_an_objective_that_falls_gets_a_weight() -> None:
    batches = [
        small([(0, [1])] * 2, draw_answer=[1.0, 0.0], draw_style=style, draw_score=[1.0, 1.0])
        for style in ([0.5, 1.5], [0.0, 0.4], [math.nan, math.nan], [9.0, 3.0])
    ]
    plain_difference = Normalisation(scale="none")
    component = ConstrainedSum(columns="answer,style", slack=0.1, rate=0.5, most=0.3, normalisation=plain_difference)
    made = run(component, batches)
    # Floor 0.9: weights 0, then 0 (clipped from -0.05), then 0.5 * (0.9 - 0.2) cut to 0.3, and as it was.
    assert column(made[0], "advantage") == [0.5, -0.5]
    assert column(made[1], "advantage") == [0.5, -0.5]
    close(column(made[2], "advantage"), [0.5, -0.5])
    close(column(made[3], "advantage"), [0.5 + 0.3 * 3.0, -0.5 - 0.3 * 3.0])
    state = made[3].state["advantage.ConstrainedSum"]
    assert state["floors"] == {"style": 0.9}
    assert state["weights"] == {"style": 0.0}


def test_constraints_need_two_columns() -> None:
    with pytest.raises(RecipeError, match="name two columns or more"):
        ConstrainedSum(columns="answer")
    with pytest.raises(RecipeError, match=r"option initial=2.0 is not possible; give a number from 0 to most=1.0"):
        ConstrainedSum(columns="a,b", initial=2.0, most=1.0)
