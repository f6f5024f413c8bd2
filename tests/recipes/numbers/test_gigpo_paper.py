"""Worked examples of the paper of gigpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from common_examples import CommonExamples
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("gigpo")
COMMON = CommonExamples(EXAMPLES, recipes.GIGPO)
TO_GO, ANCHORS, EPISODES = recipes.GIGPO.chain("advantage")
MEMBERS = [
    {
        "path": "1 | 3 ~ 9 | 4",
        "reward": 1,
        "steps": [{"state": "s", "reward": 0}, {"state": "u", "reward": 1}],
    },
    {
        "path": "1 | 5 ~ 9 | 6 ~ 9 | 7",
        "reward": 0,
        "steps": [{"state": "s", "reward": 0}, {"state": "v", "reward": 0}, {"state": "s", "reward": 0}],
    },
]


def step_advantages(recipe: Recipe) -> Found:
    return computed(recipe, ["step.advantage"], members=MEMBERS)["step.advantage"]


@EXAMPLES.by("two trajectories that meet in a state")
def meeting(example: Example) -> Found:
    del example
    found = step_advantages(recipes.GIGPO)
    return {"advantage_a": found[:2], "advantage_b": found[2:]}


@EXAMPLES.by("statistics once for each trajectory")
def by_trajectory(example: Example) -> Found:
    del example
    found = step_advantages(recipes.GIGPO.replace(advantage=replace(EPISODES, voter="trajectory", add=False)))
    return {"episode_advantage": found[[0, 2]]}


@EXAMPLES.by("with std")
def with_std(example: Example) -> Found:
    del example
    episodes = step_advantages(recipes.GIGPO.replace(advantage=replace(EPISODES, scale="std", add=False)))
    anchors = step_advantages(recipes.GIGPO.replace(advantage=(TO_GO, replace(ANCHORS, scale="std"))))
    return {"episode": episodes, "anchor": anchors[[0, 2, 4]]}


@EXAMPLES.by("tokens of observations have no loss")
def tool(example: Example) -> Found:
    return COMMON.tool_tokens(example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
