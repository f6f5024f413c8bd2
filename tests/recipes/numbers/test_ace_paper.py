"""Worked examples of the paper of ace, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, path_of, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.ace import NegativeByConfidence

EXAMPLES = PaperExamples("ace")
CommonExamples(EXAMPLES, recipes.ACE, but=["one rollout of four has no score (convention)"])
PLAIN = plain_reward(recipes.ACE)
GIVEN = PLAIN.replace(advantage=GroupRelative(center="none", scale="none"))
RELU = NegativeByConfidence(alpha=0.5, kind="relu")


def scaled(recipe: Recipe, rewards: Value, shifts: Value) -> Value:
    """Return scaled advantages of one-token rollouts with these confidence shifts; an unscored one has reward `nan`."""
    members = [
        {"path": "1 | 3", "logprobs": [-1.0], **({} if np.isnan(reward) else {"reward": float(reward)})}
        for reward in rewards
    ]
    columns = {"token": {"reference_logprob": (-1.0 - shifts).tolist()}}
    result = computed(recipe, ["token.advantage", "token.weight"], members=members, columns=columns)
    return result["token.advantage"] * result["token.weight"]


@EXAMPLES.by("a group of five with two overconfident errors")
def five(example: Example) -> Found:
    given = example.values
    weight = NegativeByConfidence(alpha=float(given["alpha"]), kind="relu")
    result = scaled(PLAIN.replace(weight=weight), given["R"], given["lp"] - given["ref"])
    return {"advantage": result, "sum_of_advantages": result.sum()}


@EXAMPLES.by("softplus instead of the maximum")
def softplus(example: Example) -> Found:
    """The recipe's weighting, at another alpha."""
    given = example.values
    result = scaled(GIVEN.replace(weight=NegativeByConfidence(alpha=float(given["alpha"]))), given["A"], given["c"])
    at_one = scaled(GIVEN, given["A"], given["c"])
    np.testing.assert_allclose(at_one - given["A"], (result - given["A"]) / given["alpha"], rtol=1e-5, atol=1e-6)
    return {"advantage": result}


@EXAMPLES.by("the shift sums over the policy's tokens")
def shift(example: Example) -> Found:
    given = example.values
    own_tokens = given["m"] > 0
    member = {"path": path_of(given["m"]), "reward": -1.0, "logprobs": given["lp"][own_tokens].tolist()}
    columns = {"token": {"reference_logprob": given["ref"][own_tokens].tolist()}}
    weights = computed(GIVEN.replace(weight=RELU), ["token.weight"], members=[member], columns=columns)["token.weight"]
    return {"shift": (weights[:1] - 1.0) / RELU.alpha}


@EXAMPLES.by("a group of one has advantage 0")
def alone(example: Example) -> Found:
    return {"advantage": scaled(PLAIN, example.values["R"], np.atleast_1d(example.values["c"]))}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    given = example.values
    rewards, shifts = np.array([*given["R"], np.nan]), np.array([*given["c"], 3.0])
    result = scaled(PLAIN.replace(weight=RELU), rewards, shifts)
    assert not result[-1]
    return {"advantage": np.array([*result[:-1], np.nan])}


def loss_and_gradient(ratio: Value, advantages: Value, factor: Value) -> dict[str, Any]:
    """Return loss and gradient of one-token rollouts with these advantages and factors of negative ones."""
    recipe = given_advantages(recipes.ACE).replace(weight=RELU)
    columns = {"token": {"reference_logprob": (-1.0 - (factor - 1.0) / RELU.alpha).tolist()}}
    policy = {"logprob": (np.log(ratio) - 1.0).tolist()}
    members = answers([1] * len(ratio), advantages.tolist())
    return dict(computed(recipe, ["loss", "gradient.logprob"], members=members, columns=columns, policy=policy))


@EXAMPLES.by("the scaled advantage in the clipped loss")
def clipped(example: Example) -> Found:
    return {"loss": loss_and_gradient(*(example.values[name] for name in ("ratio", "A", "factor")))["loss"]}


@EXAMPLES.by("a second optimizer step with the factor of the first")
def second_step(example: Example) -> Found:
    result = loss_and_gradient(*(example.values[name] for name in ("second", "A", "factor")))
    return {"loss": result["loss"], "has_gradient": result["gradient.logprob"] != 0}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
