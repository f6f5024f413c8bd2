"""Worked examples of the paper of gpg, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("gpg")
CommonExamples(EXAMPLES, recipes.GPG)
LOSSES = given_advantages(recipes.GPG)
BY_RESPONSE = given_advantages(recipes.GPG, aggregate="sequence_mean")


def _loss(recipe: Recipe, logprobs: list[Value], rewards: Value) -> Value:
    """Return the loss of a batch of one group."""
    members = answers([len(each) for each in logprobs], rewards.tolist())
    return computed(recipe, ["loss"], members=members, policy={"logprob": np.concatenate(logprobs).tolist()})["loss"]


@EXAMPLES.by("two of four groups have no gradient")
def scale(example: Example) -> Found:
    given = example.values
    members = [
        {"group": name, "path": "1 | 3", "reward": reward}
        for name in ("R1", "R2", "R3", "R4")
        for reward in given[name].tolist()
    ]
    weights = computed(recipes.GPG, ["token.weight"], members=members)["token.weight"]
    return {
        "alpha": np.unique(weights),
        "loss_of_group_1": _loss(recipes.GPG, [given["logp1"], given["logp2"]], given["R1"]),
        "loss_of_group_4": _loss(recipes.GPG, [given["logp4a"], given["logp4b"]], given["R4"]),
    }


@EXAMPLES.by("the code averages each response")
def by_response(example: Example) -> Found:
    logprobs = [example.values["logp1"], example.values["logp2"]]
    return {
        "loss_by_response": _loss(BY_RESPONSE, logprobs, example.values["A"]),
        "loss_by_token": _loss(LOSSES, logprobs, example.values["A"]),
    }


@EXAMPLES.by("the policy moved since the sample: no ratio, no clip")
def moved(example: Example) -> Found:
    old, first, second, advantages = (example.values[name] for name in ("old", "first", "second", "A"))
    later = single_tokens(LOSSES, old, second, advantages)
    return {
        "first_loss": single_tokens(LOSSES, old, first, advantages)["loss"],
        "second_loss": later["loss"],
        "gradient_of_each_log_probability": later["gradient.logprob"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
