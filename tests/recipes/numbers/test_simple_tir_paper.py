"""Worked examples of the paper of simple_tir, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.reward import OutcomeScore, Unscored

EXAMPLES = PaperExamples("simple_tir")
ALONE = "a group of one"
CommonExamples(EXAMPLES, recipes.SIMPLE_TIR, but=[ALONE])


def rollout(length: int, reward: float, good: float, flag: str = "void") -> dict[str, Any]:
    return {"path": f"1 | 3*{length}", "reward": reward, "steps": [{"flags": [] if good else [flag]}]}


@EXAMPLES.by("the void rollout counts in the group")
def void(example: Example) -> Found:
    given = zip(example.values["R"], example.values["good"], strict=True)
    result = computed(
        recipes.SIMPLE_TIR.replace(weight=recipes.SIMPLE_TIR.weight[0]),
        ["draw.advantage", "draw.keep"],
        members=[rollout(1, reward, good) for reward, good in given],
    )
    return {"advantage": result["draw.advantage"], "in_the_loss": result["draw.advantage"] * result["draw.keep"]}


@EXAMPLES.by("an overlong response does not")
def overlong(example: Example) -> Found:
    members = [rollout(1, reward, 1.0) for reward in example.values["R"]]
    members.append({**rollout(1, 1.0, 1.0), "steps": [{"truncated": True}]})
    recipe = recipes.SIMPLE_TIR.replace(reward=(OutcomeScore(), Unscored(flags="truncated")))
    result = computed(recipe, ["draw.advantage", "draw.score"], members=members)
    return {"advantage": np.where(np.isnan(result["draw.score"]), np.nan, result["draw.advantage"])}


@EXAMPLES.by(ALONE)
def alone(example: Example) -> Found:
    raw = recipes.SIMPLE_TIR.replace(advantage=replace(recipes.SIMPLE_TIR.advantage, singleton="raw"))
    return {"advantage": advantages(raw, [float(example.values["R"])])[0]}


@EXAMPLES.by("which groups are dropped")
def dropped(example: Example) -> Found:
    solved = np.round(20 * example.values["mean"]).astype(int)
    rewards = np.concatenate([np.arange(20) < count for count in solved]).astype(float)
    kept = recipes.SIMPLE_TIR.weight[1].band.holds(rewards, np.repeat(np.arange(5, dtype=np.uint32), 20))
    return {"keep": kept[::20]}


@EXAMPLES.by("the token mean counts only what is trained")
def trained(example: Example) -> Found:
    given = zip(example.values["n"].astype(int), example.values["A"], example.values["good"], strict=True)
    recipe = given_advantages(recipes.SIMPLE_TIR).replace(weight=recipes.SIMPLE_TIR.weight[0])
    members = [rollout(length, reward, good) for length, reward, good in given]
    result = computed(recipe, ["loss", "gradient.logprob"], members=members)
    weights = -result["gradient.logprob"] / np.repeat(example.values["A"], example.values["n"].astype(int))
    assert not weights[-4:].any(), "the void rollout is not trained"
    return {"loss": result["loss"], "token_weight": weights[:1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
