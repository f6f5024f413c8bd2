"""Worked examples of the paper of redit, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, plain_reward, ratios_of_one_token
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.redit import NoiseReward

EXAMPLES = PaperExamples("redit")
RECIPE = recipes.REDIT
SCORES, NOISE = RECIPE.chain("reward")
DITHERED = plain_reward(RECIPE)
"""The recipe on rewards that already include the noise of an example."""


def noises(rewards: Value, iterations: int = 1, recipe: Recipe = RECIPE) -> Value:
    """Return the noise that the recipe adds to the rewards of a group, a row for each iteration."""
    members = answers([1] * len(rewards), rewards.tolist())
    names = ["draw.score", "draw.score_clean"]
    results = [computed(recipe, names, members=members, number=number) for number in range(iterations)]
    return np.stack([each["draw.score"] - each["draw.score_clean"] for each in results])


@EXAMPLES.by("mixed group with uniform noise")
def mixed(example: Example) -> Found:
    given = example.values
    assert isinstance(NOISE, NoiseReward)
    noiseless = RECIPE.replace(reward=(SCORES, replace(NOISE, amplitude=0.0)))
    return {
        "inside": np.abs(noises(given["r"], 100)).max(axis=0) <= given["a"],
        "advantage": advantages(DITHERED, given["d"])[0],
        "advantage_without_noise": advantages(noiseless, given["r"])[0],
    }


@EXAMPLES.by("group of failures, two noise sizes")
def failures(example: Example) -> Found:
    given = example.values
    return {
        "advantage": advantages(DITHERED, given["d"])[0],
        "advantage_small_noise": advantages(DITHERED, given["small"])[0],
    }


@EXAMPLES.by("loss of two steps")
def loss(example: Example) -> Found:
    return ratios_of_one_token(given_advantages(RECIPE), example)


@EXAMPLES.by("one response")
def alone(example: Example) -> Found:
    return {"deviation": advantages(RECIPE, example.values["r"])[0]}


@EXAMPLES.by("a response without a reward (convention)")
def unscored(example: Example) -> Found:
    rewards = [*example.values["r"].tolist(), np.nan]
    assert np.isnan(advantages(RECIPE, rewards)[0]).tolist() == [False, False, False, True]
    return {"advantage": advantages(DITHERED, [*example.values["d"].tolist(), np.nan])[0]}


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_both_kinds_of_noise_have_mean_0_and_the_spread_of_the_paper(kind: str) -> None:
    assert isinstance(NOISE, NoiseReward)
    result = noises(np.zeros(500), 20, RECIPE.replace(reward=(SCORES, replace(NOISE, kind=kind))))
    assert result.std() == pytest.approx(0.05 / np.sqrt(3.0), rel=0.03)
    assert abs(result.mean()) < 4 * 0.0289 / np.sqrt(result.size)
    assert len(np.unique(result)) > 0.999 * result.size, "each draw of each iteration has noise of its own"


def test_a_group_of_equal_rewards_has_advantages_of_full_size() -> None:
    group_advantages = advantages(RECIPE, [0.0] * 4)[0]
    assert group_advantages.std(ddof=1) == pytest.approx(1.0)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
