"""Worked examples of the paper of loop, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from common_examples import CommonExamples, advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.loss import Clip, Ratio

EXAMPLES = PaperExamples("loop")
CommonExamples(
    EXAMPLES, recipes.LOOP, but=["tokens that another policy sampled", "the second optimizer step of a batch clips"]
)
PAPER = given_advantages(recipes.LOOP)
LOSSES = given_advantages(
    recipes.LOOP, clip=Clip(0.1, 0.1, scale="reciprocal"), aggregate="sequence_mean_sum", constant=32.0
)
"""The recipe with the code's loss."""


@EXAMPLES.by("leave-one-out")
def leave_one_out(example: Example) -> Found:
    one, other = advantages(recipes.LOOP, example.values["R_a"], example.values["R_b"])
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("filter with four devices")
def filtered(example: Example) -> Found:
    del example
    rewards = {"a": [1.0, 0.5, 0.0, 0.5], "b": [1.0, 0.0, 0.0]}
    members = [{"group": name, "path": "1 | 3", "reward": each} for name, group in rewards.items() for each in group]
    recipe = recipes.LOOP.replace(weight=replace(recipes.LOOP.weight, multiple=4, round_up=True))
    result = computed(recipe, ["draw.advantage", "draw.weight"], members=members)
    return {"kept": np.sum(result["draw.weight"] > 0), "above": np.abs(result["draw.advantage"]) >= 0.01}


@EXAMPLES.by("objective of tokens")
def objective(example: Example) -> Found:
    old = np.full(5, -1.0)
    result = single_tokens(PAPER, old, old + np.log(example.values["w"]), example.values["A"])
    return {"loss": result["loss"], "has_gradient": np.abs(result["gradient.logprob"]) > 0}


@EXAMPLES.by("two groups of which two rollouts are removed")
def removed(example: Example) -> Found:
    del example
    paths = {"a": ["1 | 3*2 ~ 9*3 | 4*2", "1 | 3", "1 | 3*2"], "b": ["2 | 3*3", "2 | 4"]}
    rewards = {"a": [1.0, 0.0, 0.5], "b": [0.5, 0.5]}
    result = computed(
        recipes.LOOP.replace(epochs=1, minibatches=1),
        ["draw.advantage", "draw.weight", "gradient.logprob"],
        members=[
            {"group": name, "path": path, "reward": reward}
            for name, group in paths.items()
            for path, reward in zip(group, rewards[name], strict=True)
        ],
        columns={"token": {"recomputed_logprob": [-1.0] * 11}},
    )
    slopes = result["gradient.logprob"]
    np.testing.assert_allclose(slopes[:4], slopes[0], rtol=1e-6)
    assert not slopes[5:].any()
    return {"advantage": result["draw.advantage"], "kept": result["draw.weight"], "slope": slopes[[0, 4]]}


@EXAMPLES.by("loss of tokens")
def token_loss(example: Example) -> Found:
    old = np.full(4, -1.0)
    result = single_tokens(LOSSES, old, old + np.log(example.values["w"]), example.values["A"])
    return {"loss": 32 / 4 * result["loss"]}


@EXAMPLES.by("constant divisor")
def constant(example: Example) -> Found:
    advantage_values, lengths = example.values["A"], example.values["n"].astype(int)
    members = answers(lengths.tolist(), advantage_values.tolist())
    result = computed(LOSSES, ["loss", "gradient.logprob"], members=members)
    weights = -result["gradient.logprob"][[0, -1]] / advantage_values
    return {"loss": result["loss"], "token_weight": weights}


@EXAMPLES.by("second epoch")
def second(example: Example) -> Found:
    old, one = np.full(1, -1.0), np.ones(1)
    results = [single_tokens(LOSSES, old, old + np.log(ratio), one) for ratio in example.values["w"]]
    return {
        "objective": np.array([-32 * each["loss"][0] for each in results]),
        "has_gradient": np.array([each["gradient.logprob"][0] != 0 for each in results]),
    }


@EXAMPLES.by("uneven groups after stragglers")
def stragglers(example: Example) -> Found:
    return {"advantage": advantages(recipes.LOOP, example.values["R"])[0]}


@EXAMPLES.by("a trajectory ratio")
def trajectory(example: Example) -> Found:
    by_sequence = given_advantages(recipes.LOOP, ratio=Ratio("sequence", "sum"))
    logprobs = (example.values["d"] - 1.0).tolist()
    result = computed(by_sequence, ["loss"], members=answers([3], [1]), policy={"logprob": logprobs})
    return {"ratio": -result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
