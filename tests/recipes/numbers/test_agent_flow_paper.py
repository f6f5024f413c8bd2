"""Worked examples of the paper of agent_flow, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("agent_flow")
CommonExamples(EXAMPLES, recipes.AGENT_FLOW, losses=given_advantages(recipes.AGENT_FLOW, kl=None))
BY_TURN = recipes.AGENT_FLOW.replace(advantage=replace(recipes.AGENT_FLOW.advantage, voter="step", singleton="raw"))
"""The recipe as in the public code: a rollout votes once for each turn."""


@EXAMPLES.by("advantages of four rollouts and of three")
def rollouts(example: Example) -> Found:
    one, other = advantages(recipes.AGENT_FLOW, example.values["R_a"], example.values["R_b"])
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("two rollouts of one and of three turns, both ways")
def both(example: Example) -> Found:
    one, other = example.values["R"].tolist()
    members = [{"path": "1 | 3", "reward": one}, {"path": "1 | 4 ~ 9 | 5 ~ 9 | 6", "reward": other}]

    def compute(recipe: Recipe, level: str) -> Value:
        columns = {"token": {"reference_logprob": [-1.0] * 4}}
        return computed(recipe, [f"{level}.advantage"], members=members, columns=columns)[f"{level}.advantage"]

    return {"paper": compute(recipes.AGENT_FLOW, "draw"), "code_by_row": compute(BY_TURN, "token")}


@EXAMPLES.by("means within means")
def means(example: Example) -> Found:
    one, other = example.values["A"].tolist()
    result = computed(
        given_advantages(recipes.AGENT_FLOW),
        ["loss", "gradient.logprob"],
        members=[{"path": "1 | 3*2 ~ 9 | 4*4", "reward": one}, {"path": "1 | 5*3", "reward": other}],
        columns={"token": {"reference_logprob": [-1.0] * 9}},
    )
    weights = np.abs(result["gradient.logprob"])
    return {
        "objective": -result["loss"],
        "weight_turn_of_two": weights[0],
        "weight_turn_of_four": weights[2],
        "weight_other": weights[6],
    }


@EXAMPLES.by("a group of one row")
def alone(example: Example) -> Found:
    return {"advantage": advantages(BY_TURN, [float(example.values["R"])])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
