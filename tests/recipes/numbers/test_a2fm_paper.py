"""Worked examples of the paper of a2fm, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from any_world import AnyWorld
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, plain_reward, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, in_turn, solve

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("a2fm")
CommonExamples(EXAMPLES, recipes.A2FM)
OUTCOME, COST, FORMAT = recipes.A2FM.chain("reward")


def scores(
    recipe: Recipe, right: Value, mode: Value, forced: Value, form: Value | None = None, **member: Any
) -> dict[str, Value]:
    """Return scores and advantages of a group; mode 0 is the instant one."""
    form = np.ones(len(right)) if form is None else form
    members = [
        {
            "path": "1 | 3",
            "reward": won,
            "success": bool(won),
            "rewards": {"mode": kind, "forced": is_forced, "format": read},
            **member,
        }
        for won, kind, is_forced, read in zip(
            right.tolist(), mode.tolist(), forced.tolist(), form.tolist(), strict=True
        )
    ]
    return dict(computed(recipe, ["draw.score", "draw.advantage"], members=members))


@EXAMPLES.by("the figure of the authors")
def figure(example: Example) -> Found:
    """The power is chosen so that two right rollouts of six give 0.8."""
    power = float(np.log(1 - 0.8) / np.log(2 / 6))
    recipe = recipes.A2FM.replace(reward=(OUTCOME, replace(COST, power=power), FORMAT))
    modes, forced = np.array([2, 2, 1, 1, 0, 0, 2, 1, 0]), np.array([1] * 6 + [0] * 3)
    result = scores(recipe, example.values["acc"], modes, forced)
    return {"reward": result["draw.score"], "advantage": result["draw.advantage"]}


@EXAMPLES.by("twelve rollouts of a question of medium difficulty")
def twelve(example: Example) -> Found:
    given = example.values
    assert recipes.A2FM.rollout.members.total(group_size=1) == len(given["acc"])
    group = (1 - given["instant"], 1 - given["free"])
    result = scores(recipes.A2FM, given["acc"], *group, given["format"])
    part = scores(recipes.A2FM, given["acc"], *group, reward=1)
    return {
        "adaptive": part["draw.score"],
        "reward": result["draw.score"],
        "advantage": result["draw.advantage"],
    }


@EXAMPLES.by("questions from hard to easy")
def difficulties(example: Example) -> Found:
    """Six forced rollouts, of which the first two are instant, and a free one that reasons."""
    results = []
    for rate in example.values["p"].tolist():
        right = np.array([place < round(6 * rate) for place in (0, 5, 1, 2, 3, 4, 0)], float)
        group = (np.array([0, 0, 1, 1, 2, 2, 1]), np.array([1] * 6 + [0]))
        results.append(scores(recipes.A2FM, right, *group, reward=1)["draw.score"][-1])
    return {"adaptive_of_costly_mode": np.array(results)}


@EXAMPLES.by("a forced rollout with a tool")
def prefixed(example: Example) -> Found:
    """The prefix is untrained as in a rollout of the recipe's program."""
    given = example.values
    [first, *_] = solve(recipes.A2FM, in_turn(RIGHT), world=AnyWorld(recipes.A2FM)).rows
    assert first.actions == ["<instant>" + RIGHT]
    prefix = np.full(3, float(first.trained.startswith("<instant>")))
    trainable = np.concatenate([prefix, given["turn"], given["answer"]])
    recipe = plain_reward(recipes.A2FM).replace(advantage=GroupRelative(center="none", scale="none"))
    member = {"path": "1 | 3*6 ~ 9 9 | 3 3", "reward": float(given["A"]), "trainable": trainable.tolist()}
    weights = -computed(recipe, ["gradient.logprob"], members=[member])["gradient.logprob"] / given["A"]
    return {
        "loss_of_prefix": weights[:3],
        "trained_tokens": np.sum(weights > 0),
        "token_weight_in_the_response": weights[-1:],
    }


@EXAMPLES.by("tokens that another policy sampled; a second step")
def off_policy(example: Example) -> Found:
    losses, old = given_advantages(recipes.A2FM), np.full(len(example.values["A"]), -1.0)
    return {
        name: single_tokens(losses, old, old + moved, example.values["A"])["loss"]
        for name, moved in (("first", np.zeros(len(old))), ("second", example.values["d"]))
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
