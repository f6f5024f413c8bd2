"""Worked examples of the paper of fapo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples, advantages, given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("fapo")
DUAL = given_advantages(recipes.FAPO)
CommonExamples(EXAMPLES, recipes.FAPO)
KINDS = {1.0: (True, 0), 0.0: (True, 1), -1.0: (False, 0)}
"""For each reward: whether an answer is right, and whether it is flawed."""


def judged(example: Example) -> Found:
    rewards = example.values["R"]
    members = [
        {"path": "1 | 3", "reward": 0, "success": KINDS[each][0], "facts": {"flawed": KINDS[each][1]}}
        for each in rewards.tolist()
    ]
    result = computed(recipes.FAPO, ["draw.score", "draw.advantage"], members=members)
    np.testing.assert_allclose(result["draw.score"], rewards)
    return {"advantage": result["draw.advantage"]}


@EXAMPLES.by("early: few right")
def early(example: Example) -> Found:
    return judged(example)


@EXAMPLES.by("late: most right")
def late(example: Example) -> Found:
    return judged(example)


@EXAMPLES.by("no verdict")
def unknown(example: Example) -> Found:
    del example
    members = [{"path": "1 | 3", "reward": 0, "success": True, "facts": {"flawed": 0}}]
    return {"reward": computed(recipes.FAPO, ["draw.score"], members=members)["draw.score"]}


@EXAMPLES.by("a group without difference")
def equal(example: Example) -> Found:
    return {"difference": advantages(plain_reward(recipes.FAPO), example.values["R"])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
