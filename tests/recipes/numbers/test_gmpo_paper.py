"""Worked examples of the paper of gmpo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("gmpo")
CommonExamples(EXAMPLES, recipes.GMPO)
LOSSES = given_advantages(recipes.GMPO)


def loss_and_gradient(recipe: Recipe, *rollouts: tuple[float, Value]) -> Found:
    """Return loss and gradient of answers with these advantages and log-ratios."""
    members = answers([len(ratios) for _, ratios in rollouts], [advantages for advantages, _ in rollouts])
    policy = {"logprob": (np.concatenate([ratios for _, ratios in rollouts]) - 1.0).tolist()}
    return dict(computed(recipe, ["loss", "gradient.logprob"], members=members, policy=policy))


@EXAMPLES.by("both signs")
def signs(example: Example) -> Found:
    d = example.values["d"]
    return {
        "ratio_positive": -loss_and_gradient(LOSSES, (1.0, d))["loss"],
        "ratio_negative": loss_and_gradient(LOSSES, (-1.0, d))["loss"],
    }


@EXAMPLES.by("loss of two responses")
def two(example: Example) -> Found:
    given = example.values
    rollouts = zip(given["A"].tolist(), (given["d_a"], given["d_b"]), strict=True)
    return {"loss": loss_and_gradient(LOSSES, *rollouts)["loss"]}


@EXAMPLES.by("slope of a token")
def slope(example: Example) -> Found:
    return {"slope": -loss_and_gradient(LOSSES, (float(example.values["A"]), example.values["d"]))["gradient.logprob"]}


@EXAMPLES.by("arithmetic and geometric mean of the same tokens")
def means(example: Example) -> Found:
    ratios = (1.0, example.values["d"])
    grpo = given_advantages(recipes.GRPO, clip=None, aggregate="sequence_mean")
    return {
        "geometric": -loss_and_gradient(given_advantages(recipes.GMPO, clip=None), ratios)["loss"],
        "arithmetic": -loss_and_gradient(grpo, ratios)["loss"],
    }


@EXAMPLES.by("second step")
def second(example: Example) -> Found:
    return {name: -loss_and_gradient(LOSSES, (1.0, example.values[name]))["loss"] for name in ("first", "second")}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
