"""Worked examples of the paper of opo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("opo")
CommonExamples(EXAMPLES, recipes.OPO, but=["one rollout of four has no score (convention)", "a group of one"])


@EXAMPLES.by("an uneven group")
def uneven(example: Example) -> Found:
    rewards, lengths = example.values["r"], example.values["l"].astype(int).tolist()
    advantages = computed(recipes.OPO, ["draw.advantage"], members=answers(lengths, rewards.tolist()))["draw.advantage"]
    return {"advantage": advantages, "baseline": (rewards - advantages)[0]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    rewards, lengths = example.values["r"].tolist(), example.values["l"].astype(int).tolist()
    members = [*answers(lengths[: len(rewards)], rewards), {"path": "1 | 3*3"}]
    result = computed(recipes.OPO, ["draw.advantage", "draw.score"], members=members)
    advantage = np.where(np.isnan(result["draw.score"]), np.nan, result["draw.advantage"])
    return {"advantage": advantage[: len(example.expect["advantage"])]}


@EXAMPLES.by("weighted advantages sum to zero over tokens")
def balanced(example: Example) -> Found:
    lengths = example.values["l"].astype(int).tolist()
    advantages = computed(recipes.OPO, ["token.advantage"], members=answers(lengths, [1, 0, 0]))["token.advantage"]
    return {"sum": np.sum(advantages)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
