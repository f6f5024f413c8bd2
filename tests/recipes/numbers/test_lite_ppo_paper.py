"""Worked examples of the paper of lite_ppo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples, advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("lite_ppo")
COMMON = CommonExamples(EXAMPLES, recipes.LITE_PPO, but=["a group of one"])
RESIDUALS = recipes.LITE_PPO.replace(
    advantage=(GroupRelative(scale="none"), GroupRelative(column="advantage", group_by="batch", eps=0.0))
)
"""The recipe of the other framework: the spread of the differences from the groups' means."""


def pair(recipe: Recipe, example: Example) -> Found:
    one, other = advantages(recipe, example.values["a"], example.values["b"])
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("two groups by the authors' framework")
def two(example: Example) -> Found:
    return pair(recipes.LITE_PPO, example)


@EXAMPLES.by("the same by the other framework")
def residuals(example: Example) -> Found:
    return pair(RESIDUALS, example)


@EXAMPLES.by("groups of two sizes by the formula")
def sizes(example: Example) -> Found:
    return pair(recipes.LITE_PPO, example)


@EXAMPLES.by("a group without difference stays at 0, and a small difference stays small")
def small_difference(example: Example) -> Found:
    given = example.values
    same, near, _ = advantages(recipes.LITE_PPO, given["same"], given["near"], given["far"])
    return {"same": same, "near": near, "near_by_group_std": advantages(recipes.GRPO, given["near"])[0]}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    rest = example.values["all"][1:]
    return {"advantage": advantages(recipes.LITE_PPO, [float(example.values["one"])], rest)[0]}


@EXAMPLES.by("one rollout has no score (convention: it is in neither statistic)")
def unscored(example: Example) -> Found:
    group_advantages = advantages(recipes.LITE_PPO, [*example.values["a"], np.nan], example.values["b"])
    return {"advantage_a": group_advantages[0]}


@EXAMPLES.by("token mean over rows with foreign tokens")
def foreign(example: Example) -> Found:
    return COMMON.tool_tokens(example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
