"""Worked examples of the paper of w_reinforce, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.weight import SelectDraws

EXAMPLES = PaperExamples("w_reinforce")
CommonExamples(EXAMPLES, recipes.W_REINFORCE, but=["one rollout of four has no score (convention)"])
LOSSES = given_advantages(recipes.W_REINFORCE)


def worth(rewards: Value, weight: SelectDraws | None = None, **options: float) -> Value:
    """Return advantages for right and wrong answers; `nan` for those that leave the update."""
    members = [{"path": "1 | 3", "reward": each, "success": bool(each)} for each in np.atleast_1d(rewards).tolist()]
    reward = replace(recipes.W_REINFORCE.reward, **options)
    recipe = recipes.W_REINFORCE.replace(reward=reward, weight=weight, minibatches=1)
    result = computed(recipe, ["draw.advantage", "gradient.logprob"], members=members)
    is_kept = result["gradient.logprob"] != 0
    np.testing.assert_allclose(result["gradient.logprob"], -result["draw.advantage"] * is_kept / is_kept.sum())
    return np.where(is_kept, result["draw.advantage"], np.nan)


@EXAMPLES.by("three advantages of one batch")
def three(example: Example) -> Found:
    rewards = example.values["R"]
    alone = SelectDraws(at_least=1.0)
    return {
        "weighted": worth(rewards),
        "psr": worth(rewards, alone, success=1.0, failure=0.0),
        "nsr": worth(rewards, alone, success=0.0, failure=-1.0),
    }


@EXAMPLES.by("a group of one and a group without difference are used")
def used(example: Example) -> Found:
    return {"group_of_one": worth(example.values["one"]), "all_wrong": worth(example.values["same"])}


@EXAMPLES.by("lambda = 1 is plain REINFORCE with rewards 1 and -1")
def plain(example: Example) -> Found:
    return {"advantage": worth(example.values["R"], success=1.0)}


@EXAMPLES.by("token mean over responses of two lengths")
def lengths(example: Example) -> Found:
    counts = example.values["n"].astype(int).tolist()
    members = answers(counts, example.values["A"].tolist())
    result = computed(LOSSES, ["loss", "gradient.logprob"], members=members)
    return {"loss": result["loss"], "push_per_token": -result["gradient.logprob"][[0, -1]]}


@EXAMPLES.by("clip with the two weights")
def clipped(example: Example) -> Found:
    old = np.full(4, -1.0)
    result = single_tokens(LOSSES, old, old + np.log(example.values["r"]), example.values["A"])
    return {"loss": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
