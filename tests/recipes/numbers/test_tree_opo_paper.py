"""Worked examples of the paper of tree_opo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.rollout import SearchTree

EXAMPLES = PaperExamples("tree_opo")
LOSSES = given_advantages(recipes.TREE_OPO)


def branch_rewards(right: int, count: int) -> tuple[float, float]:
    """Return mean and largest reward below the first turn of a search with a number of branches through it."""
    rewards = [1.0] * right + [0.0] * (count - right)
    forks = [{"fork": 0, "nodes": 3, "path": "| 4"}] * (count - 1)
    members = [
        {**member, "reward": reward}
        for member, reward in zip([{"path": "1 | 3 ~ 9 | 4"}, *forks], rewards, strict=True)
    ]
    tree = SearchTree.of(rollouts(members, 0), 0)
    first = int(np.flatnonzero(tree.parent < 0)[0])
    return float(tree.value[first]), float(tree.best[first])


def compared(rewards: Sequence[float], values: Sequence[float], **options: Any) -> Value:
    """Return advantages of completions that start at places of these values."""
    members = [
        {**answer, "facts": {"prefix_value": float(value)}}
        for answer, value in zip(answers([1] * len(rewards), list(map(float, rewards))), values, strict=True)
    ]
    recipe = recipes.TREE_OPO.replace(advantage=replace(recipes.TREE_OPO.advantage, **options))
    return computed(recipe, ["draw.advantage"], members=members)["draw.advantage"]


@EXAMPLES.by("a group of five prefixes")
def five(example: Example) -> Found:
    counts = zip(example.values["success"].astype(int), example.values["count"].astype(int), strict=True)
    mean, best = np.array([branch_rewards(int(right), int(count)) for right, count in counts]).T
    rewards = example.values["r"]
    return {
        "value": mean,
        "advantage": compared(rewards, mean),
        "advantage_optimistic": compared(rewards, best),
        "advantage_flat": compared(rewards, mean, alpha=0.0),
    }


@EXAMPLES.by("a completion alone")
def alone(example: Example) -> Found:
    return {"advantage": compared([float(example.values["r"])], [float(example.values["V"])])}


@EXAMPLES.by("all right")
def all_right(example: Example) -> Found:
    rewards, values = example.values["r"], example.values["V"]
    return {"flat": compared(rewards, values, alpha=0.0), "advantage": compared(rewards, values)}


@EXAMPLES.by("one of four completions has no score (convention)")
def unscored(example: Example) -> Found:
    result = compared([*example.values["r"], np.nan], [*example.values["V"], 0.5])
    assert result[3] == 0
    return {"advantage": [*result[:3], np.nan]}


@EXAMPLES.by("advantages stay over the steps of a batch")
def later_step(example: Example) -> Found:
    old, moved, advantages = np.full(2, -1.0), example.values["d"] - 1.0, example.values["a"]
    return {
        name: single_tokens(LOSSES, old, new, advantages)["loss"] for name, new in (("first", old), ("second", moved))
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
