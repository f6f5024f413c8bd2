"""Worked examples of the paper of aq_l, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("aq_l")
TREE = recipes.AQ_L.advantage
ANNEALED = TREE.expectile


def value_of(scores: Value, iteration: int) -> float:
    """Return the value of a node in an iteration, from the scores of its branches."""
    members = [{"path": "1 | 3 ~ 9 | 4", "reward": float(scores[0])}]
    members += [{"fork": 0, "nodes": 3, "path": "| 5", "reward": float(score)} for score in scores[1:]]
    recipe = recipes.AQ_L.replace(advantage=replace(TREE, kind="none"))
    return float(computed(recipe, ["step.advantage"], members=members, number=iteration)["step.advantage"][0])


@EXAMPLES.by("a batch at the start and at the end")
def annealed(example: Example) -> Found:
    given = example.values
    shorter = replace(TREE, expectile=replace(ANNEALED, iterations=int(given["T"])))
    return {"tau": np.array([shorter.at(int(iteration)).expectile for iteration in given["t"]])}


@EXAMPLES.by("two steps of a tabular critic on the same transition")
def fixed_points(example: Example) -> Found:
    last = ANNEALED.begin + ANNEALED.iterations
    return {
        "fixed_point": value_of(example.values["y"], 0),
        "fixed_point_at_half": value_of(example.values["y"], last),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_the_slope_of_the_critic_s_loss_is_0_at_the_value_of_a_node() -> None:
    scores = np.array([1.0, -0.5, 2.0])
    away = scores - value_of(scores, 0)
    assert (np.abs(0.9 - (away < 0)) * away).sum() == pytest.approx(0.0, abs=1e-6)
