"""Worked examples of the paper of minpro, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, one_rollout
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.loss import Clip
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("minpro")
CommonExamples(EXAMPLES, recipes.MINPRO, but=["a group of one"])
FREE = given_advantages(recipes.MINPRO, clip=Clip(1.0, 99.0))
CLIPPED = given_advantages(recipes.MINPRO, clip=Clip(0.2, 0.28))
"""The recipe with the clip ranges of the examples."""


def weights(recipe: Recipe, ratios: Value, advantage: float = 1.0, mask: Value | None = None) -> tuple[Value, Value]:
    """Return weight and gradient of the objective of each token of a rollout with these ratios."""
    mask = np.ones(len(ratios)) if mask is None else mask
    old, new = np.full(len(ratios), -1.0), np.log(ratios) - 1.0
    gradient = np.zeros(len(ratios))
    gradient[mask > 0] = -one_rollout(recipe, old, new, np.full(len(ratios), advantage), mask)["gradient.logprob"]
    return gradient * mask.sum() / advantage, gradient


@EXAMPLES.by("five tokens: token ratio, product and minimum")
def minimum(example: Example) -> Found:
    rho = example.values["rho"]
    weight = weights(FREE, rho)[0]
    return {"weight": weight, "minimum": weight / rho}


@EXAMPLES.by("the weight is clipped and detached, the gradient never stops")
def clipped(example: Example) -> Found:
    given = example.values
    weight, gradient = weights(CLIPPED, given["rho"], float(given["A"]))
    lp = given["lp"]
    loss = one_rollout(CLIPPED, lp - np.log(given["rho"]), lp, np.full(len(lp), given["A"]))["loss"]
    return {"weight": weight, "gradient": gradient, "objective": -loss}


@EXAMPLES.by("a low ratio early damps the rest with a low bound of 0")
def damped(example: Example) -> Found:
    losses = given_advantages(recipes.MINPRO, clip=Clip(1.0, 0.28))
    return {"weight": weights(losses, example.values["rho"])[0]}


@EXAMPLES.by("tool tokens neither vote in the minimum nor have a weight")
def tools(example: Example) -> Found:
    given = example.values
    weight, gradient = weights(CLIPPED, given["rho"], float(given["A"]), given["mask"])
    return {"weight": weight, "gradient": gradient}


@EXAMPLES.by("groups of five and of three, one mean over tokens")
def groups(example: Example) -> Found:
    given = example.values
    five, three = advantages(recipes.MINPRO, given["R"], given["S"])
    lengths = given["n"].astype(int).tolist()
    members = [
        {**member, "logprobs": [logprob] * length}
        for member, logprob, length in zip(
            answers(lengths, given["S"].tolist()), given["lp"].tolist(), lengths, strict=True
        )
    ]
    policy = {"logprob": np.repeat(given["lp"], lengths).tolist()}
    result = computed(recipes.MINPRO, ["loss"], members=members, policy=policy)
    return {"advantage_five": five, "advantage_three": three, "objective": -result["loss"]}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    return {"numerator": advantages(recipes.MINPRO, example.values["R"])[0]}


@EXAMPLES.by("the second optimizer step takes ratios and minima anew")
def second_step(example: Example) -> Found:
    return {f"{name}_weight": weights(CLIPPED, np.exp(example.values[name]))[0] for name in ("first", "second")}


def test_the_recipe_clips_at_a_fifth() -> None:
    assert weights(given_advantages(recipes.MINPRO), np.array([0.5, 2.0, 9.0]))[0].tolist() == [
        pytest.approx(0.8),
        pytest.approx(1.0),
        pytest.approx(1.2),
    ]


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
