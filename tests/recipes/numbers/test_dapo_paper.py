"""Worked examples of the paper of dapo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("dapo")
CommonExamples(EXAMPLES, recipes.DAPO)


@EXAMPLES.by("which groups stay")
def filtered(example: Example) -> Found:
    right = example.values["right"].astype(int)
    admit = recipes.DAPO.admit
    assert admit.judged == "reward", "accuracy, not the score with its penalty for length"
    rewards = np.concatenate([np.where(np.arange(16) < count, 1.0, -1.0) for count in right])
    return {"keep": admit(rewards, np.repeat(np.arange(len(right), dtype=np.uint32), 16))}


@EXAMPLES.by("overlong penalties")
def overlong(example: Example) -> Found:
    lengths = example.values["l"].astype(int).tolist()
    scores = computed(recipes.DAPO, ["draw.score"], members=answers(lengths, [1] * len(lengths)))["draw.score"]
    return {"reward_if_right": scores, "penalty": scores - 1}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
