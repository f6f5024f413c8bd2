"""Worked examples of the paper of haepo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("haepo")
GIVEN = recipes.HAEPO.replace(advantage=GroupRelative(center="none", scale="none"))
"""The recipe with the advantages of an example as rewards."""


def recipe_with(recipe: Recipe, **options: Any) -> Recipe:
    return recipe.replace(loss=replace(recipes.HAEPO.loss, **options))


def competed(recipe: Recipe, new: Sequence[Value], rewards: Value, old: Sequence[Value] | None = None) -> Found:
    """Return loss and gradient of a group, from new and previous log-probs of each trajectory's actions."""
    members = [
        {
            "path": f"1 | 3*{len(logprobs)}",
            "logprobs": before.tolist(),
            **({} if np.isnan(reward) else {"reward": float(reward)}),
        }
        for logprobs, before, reward in zip(new, new if old is None else old, rewards, strict=True)
    ]
    policy = {"logprob": np.concatenate(new).tolist()}
    names = ["loss", "gradient.logprob", "draw.advantage"]
    return dict(computed(recipe, names, members=members, policy=policy))


def single(likelihoods: Value) -> list[Value]:
    """Return trajectories of one action each."""
    return np.split(likelihoods, len(likelihoods))


def weights(new: Sequence[Value], unscored: int = 0, **options: Any) -> Value:
    """Return the weight of each trajectory: the objective if it alone has an advantage, of 1, without other terms."""
    bare = recipe_with(GIVEN, entropy_coefficient=0.0, drift_coefficient=0.0, **options)
    rewards = np.concatenate([np.eye(len(new)), np.full((len(new), unscored), np.nan)], axis=1)
    others = [np.full(1, -1.0)] * unscored
    return -np.concatenate([competed(bare, [*new, *others], each)["loss"] for each in rewards])


@EXAMPLES.by("three trajectories of unequal length")
def three(example: Example) -> Found:
    given = example.values
    new = [given[name] for name in "abc"]
    old = [np.full(len(each), total / len(each)) for each, total in zip(new, given["L_ref"], strict=True)]
    result = competed(recipes.HAEPO, new, given["R"], old)
    return {
        "weight": weights(new),
        "objective": -result["loss"],
        "gradient_wrt_log_likelihood": -result["gradient.logprob"][[0, 3, 5]],
    }


@EXAMPLES.by("a mean per token gives other weights")
def by_mean(example: Example) -> Found:
    sizes = example.values["n"].astype(int).tolist()
    new = [np.full(count, total / count) for count, total in zip(sizes, example.values["s"], strict=True)]
    return {"weight": weights(new), "weight_if_averaged": weights(new, score="mean")}


@EXAMPLES.by("one trajectory")
def alone(example: Example) -> Found:
    new = single(example.values["L"].reshape(1))
    result = competed(GIVEN, new, example.values["z"].reshape(1))
    return {"weight": weights(new), "gradient_wrt_log_likelihood": -result["gradient.logprob"]}


@EXAMPLES.by("sets of three and of one trajectory count the same")
def uneven(example: Example) -> Found:
    given = example.values
    logprobs = [*given["L"].tolist(), -0.3]
    members = [
        {"group": group, "path": "1 | 3", "logprobs": [logprob], "reward": reward}
        for group, logprob, reward in zip("aaab", logprobs, [*given["R"].tolist(), 0.4], strict=True)
    ]
    return {"objective": -computed(GIVEN, ["loss"], members=members, policy={"logprob": logprobs})["loss"]}


@EXAMPLES.by("long sequences saturate")
def long(example: Example) -> Found:
    return {"weight": weights(single(example.values["L"]))}


@EXAMPLES.by("one of four trajectories has no return (convention)")
def unscored(example: Example) -> Found:
    new = single(example.values["L"])
    compared = competed(recipes.HAEPO, [*new, np.full(1, -1.0)], np.append(example.values["R"], np.nan))
    assert compared["gradient.logprob"][3] == 0
    return {"terms": np.append(weights(new, unscored=1) * compared["draw.advantage"][:3], np.nan)}


@EXAMPLES.by("a second step: weights move, the reference stays")
def second_step(example: Example) -> Found:
    first, second, third = (single(example.values[name]) for name in ("L1", "L2", "L3"))
    won = np.array([1.0, 0.0])
    bare = recipe_with(recipes.HAEPO, entropy_coefficient=0.0, drift_coefficient=0.0)
    drift = recipe_with(GIVEN, entropy_coefficient=0.0, drift_coefficient=1.0)
    return {
        "gradient_of_returns_first": -competed(bare, first, won)["gradient.logprob"],
        "gradient_second": -competed(recipes.HAEPO, second, won, first)["gradient.logprob"],
        "kl_second_step": competed(drift, second, np.zeros(2), first)["loss"],
        "kl_next_iteration": competed(drift, third, np.zeros(2), second)["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
