"""Worked examples of the paper of mc_grpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.weight import SignalRescale

EXAMPLES = PaperExamples("mc_grpo")
CommonExamples(EXAMPLES, recipes.MC_GRPO)
PLAIN = recipes.MC_GRPO.replace(advantage=replace(recipes.MC_GRPO.advantage, scale="none"))


def credited(rewards: Value, recipe: Recipe = recipes.MC_GRPO) -> dict[str, Value]:
    """Return advantages of a group, which of its draws are trained, and their weights if the recipe has some."""
    members = answers([1] * len(rewards), rewards.tolist())
    columns = {"token": {"reference_logprob": [-1.0] * len(members)}}
    names = ["draw.advantage", "draw.keep", *(["draw.weight"] if len(recipe.chain("weight")) > 1 else [])]
    result = computed(recipe, names, members=members, columns=columns)
    return {name.removeprefix("draw."): values for name, values in result.items()}


@EXAMPLES.by("five rewards, G of 4")
def five(example: Example) -> Found:
    rewards = example.values["R"]
    away, result = advantages(PLAIN, rewards)[0], credited(rewards)
    apart, kept = away != 0, result["keep"] > 0
    return {
        "median": np.unique(np.round(rewards - away, 6)),
        "mad": np.unique(np.round(away[apart] / result["advantage"][apart] - recipes.MC_GRPO.advantage.eps, 6)),
        "advantage_of_the_trained": result["advantage"][kept],
    }


@EXAMPLES.by("an even count takes the lower middle")
def even(example: Example) -> Found:
    rewards = example.values["R"]
    averaged = recipes.MC_GRPO.replace(advantage=replace(recipes.MC_GRPO.advantage, median="midpoint"))
    return {
        "deviation": np.abs(advantages(PLAIN, rewards)[0]),
        "advantage": advantages(recipes.MC_GRPO, rewards)[0],
        "advantage_if_the_middles_were_averaged": advantages(averaged, rewards)[0],
    }


@EXAMPLES.by("binary rewards: MAD is 0")
def binary(example: Example) -> Found:
    rescaled = SignalRescale(kind="rows", column="advantage", group_by="group_id")
    result = credited(example.values["R"])
    assert result["keep"].sum() == 4
    variant = recipes.MC_GRPO.replace(weight=(rescaled, recipes.MC_GRPO.weight))
    scaled = credited(example.values["R"], variant)
    return {
        "advantage": result["advantage"],
        "advantage_of_the_gsm8k_trainer": scaled["advantage"] * scaled["weight"],
    }


@EXAMPLES.by("a group of two and of one")
def small(example: Example) -> Found:
    result, alone = credited(example.values["R"]), credited(np.ravel(example.values["one"]))
    assert not alone["keep"].any()
    return {
        "advantage_of_the_trained": result["advantage"][result["keep"] > 0],
        "advantage_of_one_sample": alone["advantage"],
    }


@EXAMPLES.by("loss without the median, two inner iterations")
def loss(example: Example) -> Found:
    given = example.values
    recipe = given_advantages(recipes.MC_GRPO).replace(weight=recipes.MC_GRPO.weight)
    median = np.full(2, -1.5)
    members = answers([3, 1, 2], [*given["A"].tolist(), 0.0])
    for member, old in zip(members, (given["old_a"], given["old_b"], median), strict=True):
        member["logprobs"] = old.tolist()
    reference = np.concatenate([given["ref_a"], given["ref_b"], median - 1.0]).tolist()
    steps = {"first_loss": ("old_a", "old_b"), "second_loss": ("second_a", "second_b")}
    return {
        name: computed(
            recipe,
            ["loss"],
            members=members,
            columns={"token": {"reference_logprob": reference}},
            policy={"logprob": np.concatenate([*(given[each] for each in policy), median]).tolist()},
        )["loss"]
        for name, policy in steps.items()
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
