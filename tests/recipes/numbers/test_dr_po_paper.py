"""Worked examples of the paper of dr_po, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("dr_po")
CRITIC, POLICY = recipes.DR_PO.chain("loss")
WEIGHTED = recipes.DR_PO.replace(advantage=GroupRelative(center="none", scale="none"), loss=POLICY, epochs=1)
"""The recipe with one step, and the advantages of an example as scores."""


@EXAMPLES.by("a roll-in of two of five tokens")
def rolled_in(example: Example) -> Found:
    """There is a draw for each token, because the advantages differ."""
    members = [
        {**answer, "trainable": [int(not is_rolled_in)]}
        for answer, is_rolled_in in zip(
            answers([1] * 5, example.values["A"].tolist()), example.values["rollin"], strict=True
        )
    ]
    policy = {"logprob": (np.log(example.values["ratio"]) - 1.0).tolist()}
    return {"policy_loss": computed(WEIGHTED, ["loss"], members=members, policy=policy)["loss"]}


@EXAMPLES.by("two responses of unequal roll-in share one denominator")
def one_denominator(example: Example) -> Found:
    members = answers([3, 1], [example.values["A_a"][0], example.values["A_b"][0]])
    return {"policy_loss": computed(WEIGHTED, ["loss"], members=members)["loss"]}


@EXAMPLES.by("KL reward, GAE and value loss over all tokens")
def credit(example: Example) -> Found:
    values = example.values
    result = computed(
        recipes.DR_PO.replace(epochs=1),
        ["token.advantage", "token.return", "loss.critic"],
        members=[{**answers([3], [float(values["score"])])[0], "logprobs": values["logp"].tolist()}],
        columns={"token": _columns(values)},
        critic={"value": values["V_new"].tolist()},
    )
    return {
        "advantage_before_whitening": result["token.advantage"],
        "value_target": result["token.return"],
        "value_loss": result["loss.critic"],
    }


def _columns(values: dict[str, Value]) -> dict[str, Any]:
    old = values["V"].tolist()
    return {"value": old, "old_value": old, "reference_logprob": values["ref"].tolist()}


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    assert [(each.epochs, each.minibatches) for each in recipes.DR_PO.losses()] == [(4, 1)] * 2, "table 5"
    members = answers([1] * 3, example.values["A"].tolist())
    policies = {step: {"logprob": example.values[step].tolist()} for step in ("first", "second")}
    results = {
        step: computed(WEIGHTED, ["loss", "gradient.logprob"], members=members, policy=policy)
        for step, policy in policies.items()
    }
    return {
        "first_loss": results["first"]["loss"],
        "second_loss": results["second"]["loss"],
        "second_has_gradient": results["second"]["gradient.logprob"] != 0,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
