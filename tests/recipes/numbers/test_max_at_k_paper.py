"""Worked examples of the paper of max_at_k, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipes.max_at_k import MaxAtK
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("max_at_k")
BATCH = recipes.MAX_AT_K.replace(epochs=1)
LOSS = recipes.MAX_AT_K.loss


def transformed(rewards: Value, k: int, *, ratios: Value | None = None) -> Value:
    """Return transformed rewards of a group whose ratios differ from 1 by this amount, read from the loss gradient."""
    recipe = BATCH.replace(loss=replace(LOSS, k=k, kl=None))
    members = answers([1] * len(rewards), rewards.tolist())
    now = -1.0 + np.log1p(np.zeros(len(rewards)) if ratios is None else ratios)
    result = computed(recipe, ["gradient.logprob"], members=members, policy={"logprob": now.tolist()})
    return -result["gradient.logprob"] * len(rewards)


def advantages_before(rewards: Value, link: MaxAtK, advantage: GroupRelative, unscored: int = 0) -> Value:
    """Return advantages of the options that transform rewards before the update."""
    recipe = BATCH.replace(reward=(OutcomeScore(), link), advantage=advantage, loss=Policy())
    members = answers([1] * len(rewards), rewards.tolist()) + [{"path": "1 | 3"}] * unscored
    return computed(recipe, ["draw.advantage"], members=members)["draw.advantage"]


def scored(rewards: Value, k: int, unscored: int = 0) -> Value:
    """Return advantages with the z-score of the paper's baseline."""
    return advantages_before(rewards, MaxAtK(k=k), GroupRelative(eps=0.0), unscored)


@EXAMPLES.by("four rewards, k = 2")
def four(example: Example) -> Found:
    rewards = example.values["r"]
    return {
        "max_at_2": transformed(rewards, 2).sum() / 2,  # each subset is counted once for each of its members
        "transformed": transformed(rewards, 2),
        "advantage_n_minus_1": scored(rewards, 2),
    }


@EXAMPLES.by("five rewards in another order, k = 3")
def five(example: Example) -> Found:
    result = transformed(example.values["r"], 3)
    return {"max_at_3": result.sum() / 3, "transformed": result}


@EXAMPLES.by("off-policy weights, k = 2")
def off_policy(example: Example) -> Found:
    return {"transformed": transformed(example.values["r"], 2, ratios=example.values["d"])}


@EXAMPLES.by("off-policy weights, k = 3 of four")
def of_four(example: Example) -> Found:
    result = transformed(example.values["r"], 3, ratios=example.values["d"])
    return {"transformed_2": result[1], "transformed_3": result[2]}


@EXAMPLES.by("two iterations on the same batch")
def iterations(example: Example) -> Found:
    rewards = example.values["r"]
    assert recipes.MAX_AT_K.epochs == 3
    return {"first": transformed(rewards, 2), "second": transformed(rewards, 2, ratios=example.values["d"])}


@EXAMPLES.by("a completion beyond the clip range")
def clipped(example: Example) -> Found:
    return {"weight_of_the_gradient": transformed(example.values["r"], 2, ratios=example.values["d"])}


@EXAMPLES.by("leave one out, k = 2")
def leave_one_out(example: Example) -> Found:
    link = MaxAtK(k=2, kind="leave_one_out")
    return {"advantage": advantages_before(example.values["r"], link, GroupRelative(center="none", scale="none"))}


@EXAMPLES.by("a group of one, k = 1")
def alone(example: Example) -> Found:
    return {"transformed": transformed(example.values["r"], 1), "centred": scored(example.values["r"], 1)}


@EXAMPLES.by("one completion of four has no score (convention)")
def unscored(example: Example) -> Found:
    result = scored(example.values["r"], 2, unscored=1)
    assert result[-1] == 0.0
    return {"advantage_n_minus_1": [*result[:-1], np.nan]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
