"""Worked examples of the paper of roll_art, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import Forest, recipes
from agentrl_core.collect.prefetch import allowed
from agentrl_core.collect.run_state import RunState
from agentrl_core.recipe import Recipe
from agentrl_core.schedule import LimitStaleness

EXAMPLES = PaperExamples("roll_art")


def versions(recipe: Recipe = recipes.ROLL_ART) -> int:
    """Return how many versions old a trajectory may be: the iterations that a collector starts ahead, up to nine."""
    return allowed(recipe, 9, RunState(0, {}, {}, {}, None, Forest().freeze().tasks, 0))


@EXAMPLES.by("which trajectories stay")
def stay(example: Example) -> Found:
    age = example.values["age"]
    second = recipes.ROLL_ART.replace(hooks=LimitStaleness(2))
    return {"keep_alpha_1": age <= versions(), "keep_alpha_2": age <= versions(second)}


@EXAMPLES.by("groups by create step")
def created(example: Example) -> Found:
    return {
        "groups_at_first_step": versions() + 1,
        "keep": example.values["step"] - example.values["create"] <= versions(),
    }


@EXAMPLES.by("order of an iteration")
def order(example: Example) -> Found:
    del example
    return {"lag_after_training": versions()}


@EXAMPLES.by("five run, three count")
def redundant(example: Example) -> Found:
    """Rollouts that were stopped have no score."""
    rewards = np.full(5, np.nan)
    rewards[np.argsort(example.values["finish"])[:3]] = example.values["r"]
    return {"advantage": advantages(recipes.ROLL_ART, rewards)[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
