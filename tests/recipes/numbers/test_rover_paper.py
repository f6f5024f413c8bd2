"""Worked examples of the paper of rover, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from common_examples import CommonExamples, advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("rover")
ALONE = "a group of one"
CommonExamples(EXAMPLES, recipes.ROVER, but=[ALONE], losses=recipes.ROVER)


def loss_and_gradient(recipe: Recipe, reward: float, **numbers: Any) -> Found:
    """Return loss and gradient of one answer with this reward."""
    count = len(numbers["new"])
    return dict(
        computed(
            recipe.replace(advantage=GroupRelative(center="none", scale="none"), minibatches=1),
            ["loss", "gradient.logprob"],
            members=[{**answers([count], [reward])[0], "logprobs": numbers["old"].tolist()}],
            columns={"token": {"old_mean_logprob": numbers["u_old"].tolist()}},
            policy={"logprob": numbers["new"].tolist(), "mean_logprob": numbers["u"].tolist()},
        )
    )


@EXAMPLES.by("centred rewards")
def centred(example: Example) -> Found:
    one, other = advantages(recipes.ROVER, example.values["a"], example.values["b"])
    return {"reward_a": one, "reward_b": other}


@EXAMPLES.by("the math script's rewards")
def divided(example: Example) -> Found:
    return {"reward_a": advantages(recipes.ROVER.replace(advantage=GroupRelative()), example.values["a"])[0]}


@EXAMPLES.by(ALONE)
def alone(example: Example) -> Found:
    raw = recipes.ROVER.replace(advantage=GroupRelative(scale="none", center="none"))
    return {"reward": advantages(raw, [float(example.values["R"])])[0]}


@EXAMPLES.by("the first minibatch")
def first(example: Example) -> Found:
    same = np.full(int(example.values["n"]), -1.0)
    result = loss_and_gradient(recipes.ROVER, float(example.values["r"]), old=same, new=same, u=same, u_old=same)
    return {"loss": result["loss"], "derivative_per_token": result["gradient.logprob"][:1]}


@EXAMPLES.by("a later minibatch")
def later(example: Example) -> Found:
    given = {name: example.values[name] for name in ("old", "new", "u", "u_old")}
    result = loss_and_gradient(recipes.ROVER, float(example.values["r"]), **given)
    return {"loss": result["loss"], "derivative": result["gradient.logprob"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
