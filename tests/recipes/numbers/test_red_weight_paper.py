"""Worked examples of the paper of red_weight, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("red_weight")
RED = recipes.RED_WEIGHT
CommonExamples(EXAMPLES, RED, but=["one rollout of four has no score (convention)", "a group of one"])
GIVEN = RED.replace(advantage=GroupRelative(center="none", scale="none"))
"""The recipe with the advantages of an example as rewards."""
NAMES = ["draw.advantage", "token.weight", "gradient.logprob"]


def weighted(rewards: Value, recipe: Recipe = RED, unscored: int = 0) -> Found:
    """Return advantages, weights and their products (minus the gradient) of one-token rollouts."""
    members = answers([1] * len(rewards), rewards.tolist()) + [{"path": "1 | 3"}] * unscored
    result = computed(recipe, NAMES, members=members)
    return {
        "advantage": result["draw.advantage"],
        "weight": result["token.weight"],
        "weighted": -result["gradient.logprob"] * len(rewards),
    }


@EXAMPLES.by("weights of a group of five, failed rollouts count less")
def five(example: Example) -> Found:
    result = weighted(example.values["r"])
    return {**result, "sum_of_weighted": np.sum(result["weighted"])}


@EXAMPLES.by("what the plain baseline adds to weighted REINFORCE")
def imitation(example: Example) -> Found:
    return {"weighted": weighted(example.values["r"])["weighted"]}


@EXAMPLES.by("groups of two and of three, responses of unequal length")
def groups(example: Example) -> Found:
    given = example.values
    logprobs = [given[f"l{name}"] for name in "abcde"]
    lengths = [len(each) for each in logprobs]
    members = [
        {**member, "group": group}
        for member, group in zip(answers(lengths, [*given["r"], *given["s"]]), "rrsss", strict=True)
    ]
    policy = {"logprob": np.concatenate(logprobs).tolist()}
    result = computed(RED, ["loss"], members=members, policy=policy)
    by_response = computed(
        RED.replace(loss=replace(RED.loss, aggregate="sequence_mean")), ["loss"], members=members, policy=policy
    )
    return {
        "weighted_a": weighted(given["r"])["weighted"],
        "weighted_b": weighted(given["s"])["weighted"],
        "loss": result["loss"],
        "loss_by_response": by_response["loss"],
    }


@EXAMPLES.by("a temperature of one half")
def temperature(example: Example) -> Found:
    recipe = GIVEN.replace(weight=replace(RED.weight, temperature=float(example.values["temp"])))
    result = weighted(example.values["A"], recipe)
    return {name: result[name] for name in ("weight", "weighted")}


@EXAMPLES.by("data of an older policy, two steps: no ratio")
def off_policy(example: Example) -> Found:
    old, first, second, advantages = (example.values[name] for name in ("old", "first", "second", "A"))
    later = single_tokens(GIVEN, old, second, advantages)
    return {
        "first_loss": single_tokens(GIVEN, old, first, advantages)["loss"],
        "second_loss": later["loss"],
        "slope_in_log_probability": later["gradient.logprob"],
    }


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    return {"weighted": weighted(example.values["r"])["weighted"]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    result = weighted(example.values["r"], unscored=1)["weighted"]
    assert result[-1] == 0.0
    return {"weighted": [*result[:-1], np.nan]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
