"""Worked examples of the paper of tree_grpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("tree_grpo")
CommonExamples(EXAMPLES, recipes.TREE_GRPO, but=["one rollout of four has no score (convention)"])
IN_PROMPT, IN_TREE = recipes.TREE_GRPO.chain("advantage")
CODE = recipes.TREE_GRPO.replace(
    advantage=(replace(IN_PROMPT, singleton="raw"), replace(IN_TREE, column="advantage", singleton="raw", add=False))
)
"""The recipe as in the public code: the prompt's comparison is compared once more within the tree."""


def leaves(recipe: Recipe, rewards: Value, sizes: tuple[int, ...]) -> list[Value]:
    """Return advantages of the leaves of each tree."""
    trees = [tree for tree, size in enumerate(sizes) for _ in range(size)]
    members = [
        {"path": "1 | 3", "reward": reward, "facts": {"tree": str(tree)}}
        for reward, tree in zip(rewards, trees, strict=True)
    ]
    columns = {"token": {"reference_logprob": [-1.0] * len(members)}}
    draw_advantages = computed(recipe, ["draw.advantage"], members=members, columns=columns)["draw.advantage"]
    return np.split(draw_advantages, np.cumsum(sizes)[:-1])


@EXAMPLES.by("two trees of three and of two leaves, as the code does it")
def code(example: Example) -> Found:
    one, other = leaves(CODE, example.values["R"], (3, 2))
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("the same leaves, as the sum of both levels")
def both(example: Example) -> Found:
    one, other = leaves(recipes.TREE_GRPO, example.values["R"], (3, 2))
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("a tree whose leaves agree")
def agreed(example: Example) -> Found:
    prompt = recipes.TREE_GRPO.replace(advantage=IN_PROMPT)
    return {
        "inter_tree": leaves(prompt, example.values["R"], (2, 2))[0],
        "advantage_a": leaves(CODE, example.values["R"], (2, 2))[0],
    }


@EXAMPLES.by("a tree of one leaf beside a tree of two, as the sum of both levels")
def lone_leaf(example: Example) -> Found:
    one, other = leaves(recipes.TREE_GRPO, example.values["R"], (2, 1))
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": advantages(recipes.TREE_GRPO.replace(advantage=IN_PROMPT), [*example.values["R"], np.nan])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
