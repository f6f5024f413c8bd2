"""Worked examples of the paper of rise, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("rise")


@EXAMPLES.by("advantages with gamma and lambda of one")
def rise_advantages(example: Example) -> Found:
    old, values = example.values["V_old"].tolist(), example.values["V"].tolist()
    result = computed(
        recipes.RISE.replace(advantage=recipes.RISE.advantage[0], minibatches=1),
        ["token.advantage", "token.return", "loss.critic"],
        members=answers([3], [-0.5]),
        columns={"token": {"value": old, "old_value": old, "reference_logprob": [-1.0] * 3}},
        critic={"value": values},
    )
    return {
        "advantage_before_whitening": result["token.advantage"],
        "value_target": result["token.return"],
        "critic_loss": 2 * result["loss.critic"],  # half of the paper's, as in the code
    }


@EXAMPLES.by("whitening runs over both tasks")
def rise_whitening(example: Example) -> Found:
    result = computed(
        recipes.RISE,
        ["token.advantage"],
        members=answers([1, 1, 1], example.values["all"].tolist()),
        columns={"token": {"value": [0.0] * 3, "reference_logprob": [-1.0] * 3}},
    )
    return {"advantage": result["token.advantage"]}


@EXAMPLES.by("where the verifications come from")
def rise_quotas(example: Example) -> Found:
    program = replace(recipes.RISE.rollout, verifications=int(example.values["verified"]))
    return {"from_each_group": np.array(program.quotas(int(example.values["groups"])))}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
