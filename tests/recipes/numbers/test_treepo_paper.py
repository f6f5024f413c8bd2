"""Worked examples of the paper of treepo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("treepo")
BEFORE, DIVISION = recipes.TREE_PO.chain("advantage")
CommonExamples(EXAMPLES, recipes.TREE_PO.replace(advantage=BEFORE), losses=given_advantages(recipes.TREE_PO))


def advantages_before(rewards: Value, **options: Any) -> Found:
    """Return advantages of five leaves before the division; three share a first segment, and two another."""
    members = [
        {"path": "1 | 3 ~ 9 | 4"},
        {"fork": 0, "nodes": 3, "path": "| 5"},
        {"fork": 0, "nodes": 3, "path": "| 6"},
        {"path": "1 | 7 ~ 9 | 4"},
        {"fork": 3, "nodes": 3, "path": "| 5"},
    ]
    scored_members = [{**member, "reward": reward} for member, reward in zip(members, rewards.tolist(), strict=True)]
    recipe = recipes.TREE_PO.replace(advantage=replace(BEFORE, **options))
    return {
        "advantage_before_whitening": computed(recipe, ["draw.advantage"], members=scored_members)["draw.advantage"]
    }


@EXAMPLES.by("a prompt of five leaves, two subtrees")
def subtrees(example: Example) -> Found:
    return advantages_before(example.values["R"])


@EXAMPLES.by("weighted by the number of leaves")
def weighted(example: Example) -> Found:
    del example
    return advantages_before(np.array([1.0, 0.0, 0.0, 1.0, 1.0]), weighting="group_size")


@EXAMPLES.by("subgroups without a difference are rejected")
def rejected(example: Example) -> Found:
    return advantages_before(example.values["R"], weighting="group_size", drop_constant=True)


def divided(link: GroupRelative, example: Example) -> Found:
    """Return advantages of a leaf of three tokens and one of one."""
    long, short = example.values["a"][[0, -1]]
    batch = small([(0, [3]), (0, [1])], draw_score=[1, 0], draw_advantage=[long, short])
    return {"advantage": np.repeat(column(link(batch)), [3, 1])}


@EXAMPLES.by("the std of the batch, and no mean taken off")
def by_std(example: Example) -> Found:
    return divided(DIVISION, example)


@EXAMPLES.by("whitening weighs by tokens (code)")
def whitening(example: Example) -> Found:
    return divided(replace(DIVISION, center="mean"), example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
