"""Worked examples of the paper of treepo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples, given_advantages
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from rollouts import small

from agentrl_core import recipes

EXAMPLES = PaperExamples("treepo")
BEFORE, WHITENING = recipes.TREE_PO.chain("advantage")
CommonExamples(EXAMPLES, recipes.TREE_PO.replace(advantage=BEFORE), losses=given_advantages(recipes.TREE_PO))


@EXAMPLES.by("a prompt of five leaves, two subtrees")
def subtrees(example: Example) -> Found:
    members = [
        {"path": "1 | 3 ~ 9 | 4"},
        {"fork": 0, "nodes": 3, "path": "| 5"},
        {"fork": 0, "nodes": 3, "path": "| 6"},
        {"path": "1 | 7 ~ 9 | 4"},
        {"fork": 3, "nodes": 3, "path": "| 5"},
    ]
    paid = [{**member, "reward": reward} for member, reward in zip(members, example.values["R"].tolist(), strict=True)]
    found = computed(recipes.TREE_PO.replace(advantage=BEFORE), ["draw.advantage"], members=paid)
    return {"advantage_before_whitening": found["draw.advantage"]}


@EXAMPLES.by("whitening weighs by tokens")
def whitening(example: Example) -> Found:
    long, short = example.values["a"][[0, -1]]
    batch = small([(0, [3]), (0, [1])], draw_score=[1, 0], draw_advantage=[long, short])
    return {"advantage": np.repeat(column(WHITENING(batch)), [3, 1])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
