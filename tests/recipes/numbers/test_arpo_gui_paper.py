"""Worked examples of the paper of arpo_gui, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from common_examples import CommonExamples, advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("arpo_gui")
ALONE = "a group of one"
COMMON = CommonExamples(EXAMPLES, recipes.ARPO_GUI, but=[ALONE])


@EXAMPLES.by("a failed group takes a stored success at its first place")
def replaced(example: Example) -> Found:
    inject = recipes.ARPO_GUI.replay
    assert inject.when.of(example.values["before"])
    assert inject.replaces == "first"
    rewards = [float(example.values["stored"]), *example.values["before"][1:].tolist()]
    members = answers([1] * 4, rewards)
    result = computed(plain_reward(recipes.ARPO_GUI), ["draw.score", "draw.advantage"], members=members)
    return {"rewards": result["draw.score"], "advantage": result["draw.advantage"]}


@EXAMPLES.by("a group that is not failed stays")
def stays(example: Example) -> Found:
    return {"failed": float(recipes.ARPO_GUI.replay.when.of(example.values["eval"]))}


@EXAMPLES.by("what the queue holds")
def stored(example: Example) -> Found:
    rewards = example.values["evals"].tolist()
    return {"stored": [float(reward > recipes.ARPO_GUI.replay.memory.where.above) for reward in rewards]}


@EXAMPLES.by("rewards with an unreadable output")
def rewards(example: Example) -> Found:
    given = zip(example.values["eval"].tolist(), example.values["f"].tolist(), strict=True)
    members = [{"path": "1 | 3", "reward": worth, "rewards": {"format": readable}} for worth, readable in given]
    return {"reward": computed(recipes.ARPO_GUI, ["draw.score"], members=members)["draw.score"]}


@EXAMPLES.by(ALONE)
def alone(example: Example) -> Found:
    raw = replace(recipes.ARPO_GUI.advantage, singleton="raw")
    return {
        "advantage": advantages(plain_reward(recipes.ARPO_GUI.replace(advantage=raw)), [float(example.values["R"])])[0]
    }


@EXAMPLES.by("the dual clip")
def dual(example: Example) -> Found:
    return COMMON.off_policy(example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
