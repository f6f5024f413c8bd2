"""Worked examples of the paper of p3o, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.p3o import PairwiseProximal, ReferencePenalty

EXAMPLES = PaperExamples("p3o")
(LOSS,) = recipes.P3O.chain("loss")
assert isinstance(LOSS, PairwiseProximal)
WITHOUT_KL = plain_reward(recipes.P3O)
JOINT = WITHOUT_KL.replace(loss=replace(LOSS, kind="joint"))


def pair(
    rewards: Value, old: Value | None = None, new: Value | None = None, recipe: Recipe = WITHOUT_KL
) -> Mapping[str, Value]:
    """Return loss, and its gradient by log-prob, of two responses of one token each."""
    old = np.full(len(rewards), -1.0) if old is None else old
    members = [
        {**member, "logprobs": [logprob]}
        for member, logprob in zip(answers([1] * len(rewards), rewards.tolist()), old.tolist(), strict=True)
    ]
    policy = {"logprob": (old if new is None else new).tolist()}
    return computed(recipe, ["loss", "gradient.logprob"], members=members, policy=policy)


@EXAMPLES.by("rewards with KL, responses of three and of two tokens")
def with_kl(example: Example) -> Found:
    given = example.values
    penalised = recipes.P3O.chain("reward")[1]
    assert isinstance(penalised, ReferencePenalty)
    assert penalised.coefficient == given["beta"]
    lengths = [len(given["a"]), len(given["b"])]
    reference = np.concatenate([given["a_sft"], given["b_sft"]])

    def numbers(rewards: Value) -> Mapping[str, Value]:
        members = answers(lengths, rewards.tolist())
        for member, name in zip(members, "ab", strict=True):
            member["logprobs"] = given[name].tolist()
        return computed(
            recipes.P3O,
            ["draw.score", "gradient.logprob"],
            members=members,
            columns={"token": {"reference_logprob": reference.tolist()}},
            policy={"logprob": np.concatenate([given["a"], given["b"]]).tolist()},
        )

    result = numbers(given["r"])
    slopes = np.split(-result["gradient.logprob"], lengths[:1])
    for each in slopes:
        np.testing.assert_allclose(each, each[0])
    return {
        "reward_1": result["draw.score"][:1],
        "reward_2": result["draw.score"][1:],
        "slope_1": slopes[0][:1],
        "slope_2": slopes[1][:1],
        "slope_after_a_shift": -numbers(given["r"] + given["shift"])["gradient.logprob"][:1],
    }


@EXAMPLES.by("V1 and V2 off-policy")
def off_policy(example: Example) -> Found:
    given = [example.values[name] for name in ("R", "old", "new")]
    separate = pair(*given)
    return {
        "objective_v1": -separate["loss"],
        "gradient_of_v1_by_response": separate["gradient.logprob"] != 0,
        "objective_v2": -pair(*given, recipe=JOINT)["loss"],
    }


@EXAMPLES.by("two optimizer steps on a pair")
def steps(example: Example) -> Found:
    given = example.values
    old = (given["R"], given["old"])
    second = pair(*old, given["second"])
    return {
        "first_v1": -pair(*old)["loss"],
        "first_v2": -pair(*old, recipe=JOINT)["loss"],
        "second_v1": -second["loss"],
        "slope_in_log_probability_1": -second["gradient.logprob"][:1],
        "second_v2": -pair(*old, given["second"], recipe=JOINT)["loss"],
    }


@EXAMPLES.by("equal rewards have no gradient")
def equal(example: Example) -> Found:
    return {"slope": -pair(example.values["R"])["gradient.logprob"][:1]}


@EXAMPLES.by("a response alone makes no pair")
@EXAMPLES.by("one of two responses has no score (convention)")
def no_pair(example: Example) -> Found:
    members = answers([1, 1], [1.0, 0.0])[: int(example.values.get("n", 2))]
    for member in members[int(example.values.get("scored", 1)) :]:
        del member["reward"]
    result = computed(WITHOUT_KL, ["loss"], members=members)
    return {"pairs": np.array("loss" in result, np.float64)}  # a pair would make an update, which has a loss


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
