"""Worked examples of the paper of rapid, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("rapid")
CommonExamples(EXAMPLES, recipes.RAPID)
LOSSES = given_advantages(recipes.RAPID)


def coefficients(recipe: Recipe, ratios: Value, scores: Value) -> Value:
    """Return the gradient factors of log p of one-token rollouts with these ratios and scores."""
    old = np.full(len(ratios), -4.0)
    gradient = single_tokens(recipe, old, old + np.log(ratios), scores)["gradient.logprob"]
    return -len(ratios) * gradient


@EXAMPLES.by("groups of three and of two, on-policy")
def on_policy(example: Example) -> Found:
    first, second, alone = advantages(recipes.RAPID, *(np.ravel(example.values[name]) for name in "RST"))
    return {"first": first, "second": second, "group_of_one": alone}


@EXAMPLES.by("the weighted baseline has two readings")
def baselines(example: Example) -> Found:
    ratios, rewards = example.values["ratio"], example.values["R"]
    plain = recipes.RAPID.replace(minibatches=1)
    return {
        "weight": coefficients(LOSSES, ratios, np.ones(len(ratios))),
        "coefficient_if_the_baseline_were_not_weighted": coefficients(plain, ratios, rewards),
    }


@EXAMPLES.by("three updates of one phase and the first of the next")
def phases(example: Example) -> Found:
    ratios = np.exp(example.values["new"] - example.values["old"])
    return {"weight": coefficients(LOSSES, ratios, np.ones(len(ratios)))}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
