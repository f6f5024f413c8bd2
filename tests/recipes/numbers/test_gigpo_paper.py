"""Worked examples of the paper of gigpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages
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


IN_CODE = replace(EPISODES, voter="row", singleton="raw", add=False)
"""The recipe with the public code's episode advantage: every step votes, and a group of one counts as mean 0."""


def step_advantages(recipe: Recipe, members: Sequence[Mapping[str, Any]] = MEMBERS, tokens: int = 5) -> Value:
    """Return advantages of the steps; the tokens are as likely under the reference as under the policy."""
    columns = {"token": {"reference_logprob": [-1.0] * tokens}}
    return computed(recipe, ["step.advantage"], members=members, columns=columns)["step.advantage"]


@EXAMPLES.by("two trajectories that meet in a state")
def meeting(example: Example) -> Found:
    del example
    step_advantage_values = step_advantages(recipes.GIGPO)
    return {"advantage_a": step_advantage_values[:2], "advantage_b": step_advantage_values[2:]}


@EXAMPLES.by("uneven trajectories, one without a score (convention)")
def uneven(example: Example) -> Found:
    del example
    steps = [("s", 0.0), ("s", 0.5), ("u", 0.0), ("s", 0.5)]
    members = [
        {
            "path": "1 | 3 ~ 9 | 4 ~ 9 | 5 ~ 9 | 6",
            "reward": 1,
            "steps": [{"state": state, "reward": reward} for state, reward in steps],
        },
        {"path": "1 | 7", "reward": 0, "steps": [{"state": "s", "reward": 0}]},
        {"path": "1 | 8", "reward": 0.25, "steps": [{"state": "s", "reward": 0.25}]},
        {"path": "1 | 3 ~ 9 | 8", "steps": [{"state": "s", "reward": 9}, {"state": "u", "reward": 9}]},
    ]
    step_advantage_values = step_advantages(recipes.GIGPO, members, tokens=8)
    assert not step_advantage_values[6:].any()
    return {
        "advantage_a": step_advantage_values[:4],
        "advantage_b": step_advantage_values[4],
        "advantage_c": step_advantage_values[5],
    }


@EXAMPLES.by("statistics over all steps, as in the code")
def over_steps(example: Example) -> Found:
    del example
    return {"episode_advantage": step_advantages(recipes.GIGPO.replace(advantage=IN_CODE))}


@EXAMPLES.by("a group of one in the code")
def alone_in_code(example: Example) -> Found:
    return {"advantage": advantages(recipes.GIGPO.replace(advantage=IN_CODE), [float(example.values["R"])])[0]}


@EXAMPLES.by("with std")
def with_std(example: Example) -> Found:
    del example
    episodes = step_advantages(recipes.GIGPO.replace(advantage=replace(IN_CODE, scale="std")))
    anchors = step_advantages(recipes.GIGPO.replace(advantage=(TO_GO, replace(ANCHORS, scale="std"))))
    return {"episode": episodes, "anchor": anchors[[0, 2, 4]]}


@EXAMPLES.by("tokens of observations have no loss")
def tool(example: Example) -> Found:
    return COMMON.tool_tokens(example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
