"""Worked examples of the paper of eighty_twenty, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import TopTokens
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("eighty_twenty")
AS_TRL = recipes.FORKING_TOKENS.replace(advantage=GroupRelative(eps=1e-4))
CommonExamples(EXAMPLES, AS_TRL)
LOSSES = given_advantages(recipes.FORKING_TOKENS)


def loss_and_gradient(entropies: Value, advantage_values: Value, ratios: Value, losses: Recipe = LOSSES) -> Found:
    """Return loss and gradient of one-token answers."""
    members = answers([1] * len(advantage_values), advantage_values.tolist())
    policy = {"entropy": entropies.tolist(), "logprob": (np.log(ratios) - 1.0).tolist()}
    return dict(computed(losses, ["loss", "gradient.logprob"], members=members, policy=policy))


def mask(entropies: Value) -> Value:
    """Return which tokens have a gradient at ratio 1."""
    one = np.ones(len(entropies))
    return loss_and_gradient(entropies, one, one)["gradient.logprob"] != 0


@EXAMPLES.by("ten tokens")
def ten(example: Example) -> Found:
    return {"mask": mask(example.values["H"])}


@EXAMPLES.by("ties")
def ties(example: Example) -> Found:
    return {"mask": mask(example.values["H"])}


@EXAMPLES.by("the threshold moves with the policy")
def moves(example: Example) -> Found:
    return {name: mask(example.values[name]) for name in ("first", "second")}


@EXAMPLES.by("loss with the chosen tokens in the divisor")
def divisor(example: Example) -> Found:
    return {"loss": loss_and_gradient(*(example.values[name] for name in ("mask", "A", "ratio")))["loss"]}


@EXAMPLES.by("loss with all tokens in the divisor (trl)")
def divisor_of_trl(example: Example) -> Found:
    as_trl = given_advantages(recipes.FORKING_TOKENS, mask=TopTokens("entropy", 0.2))
    return {"loss": loss_and_gradient(*(example.values[name] for name in ("mask", "A", "ratio")), as_trl)["loss"]}


@EXAMPLES.by("group advantages (trl)")
def groups(example: Example) -> Found:
    recipe = plain_reward(AS_TRL)
    one, other = advantages(recipe, example.values["R_a"], example.values["R_b"])
    return {"advantage_a": one, "advantage_b": other}


def test_a_batch_is_sixteen_steps() -> None:
    assert recipes.FORKING_TOKENS.minibatches == 16


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
