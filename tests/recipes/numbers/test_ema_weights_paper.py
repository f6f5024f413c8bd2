"""Worked examples of the paper of ema_weights, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from moved_models import followed
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.ema_weights import DecayedAverage

EXAMPLES = PaperExamples("ema_weights")
HOOK = recipes.EMA_WEIGHTS.hooks
assert isinstance(HOOK, DecayedAverage)


def averages(beta: Value, thetas: Value, start: Value) -> Value:
    """Return the average after each step, with a share that has decayed to its floor at the second."""
    return followed(recipes.EMA_WEIGHTS, replace(HOOK, mix=float(beta), power=10.0), thetas, start)


@EXAMPLES.by("four iterates that swing, and their average")
def swing(example: Example) -> Found:
    """The first iterate is the average, so its weight is arbitrary."""
    given = example.values
    average_path = averages(given["beta"], given["theta"], given["avg"])
    return {"average": average_path[-1:], "common_tracker_after_one_step": average_path[1:2]}


@EXAMPLES.by("schedules at the first step and later")
def schedule(example: Example) -> Found:
    given = example.values
    steps = given["t"].astype(int).tolist()
    hook = replace(HOOK, mix=float(given["beta_min"]), power=float(given["a"]))
    thetas = np.full(10, float(given["theta"]))
    old_averages = np.full(10, float(given["avg"]))
    tenth = followed(recipes.EMA_WEIGHTS, hook, np.append(old_averages[:9], thetas[9]), given["avg"])[-1]
    first = followed(recipes.EMA_WEIGHTS, hook, thetas[:1], given["avg"])[0]
    np.testing.assert_allclose([first, tenth], example.expect["average"][:2], rtol=1e-6)
    return {"weight_of_the_new": np.array([hook.share(step) for step in steps])}


@EXAMPLES.by("average kept over two rounds, none at the first")
def rounds(example: Example) -> Found:
    given = example.values
    thetas = np.stack([given["theta"], given["next_theta"]])
    first, second = averages(given["beta"], thetas, given["avg_0"])
    return {"average_after_first": first, "average_after_second": second}


def test_the_average_moves_after_every_step() -> None:
    assert (HOOK.unit, HOOK.source, HOOK.target) == ("steps", "policy", "average")
    with pytest.raises(RecipeError, match="corrected"):
        replace(HOOK, corrected=True)
    assert [HOOK.share(step) for step in (1, 4, 10**8)] == [1.0, 0.5, 0.001]


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
