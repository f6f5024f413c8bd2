"""Worked examples of the paper of spear, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, plain_reward, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("spear")
CommonExamples(
    EXAMPLES,
    recipes.SPEAR.replace(advantage=recipes.SPEAR.chain("advantage")[0], weight=None, replay=None),
    but=["tokens that another policy sampled", "the second optimizer step of a batch clips"],
)


def recipe_at(iteration: int, length: int = 100) -> Recipe:
    """Return the recipe of an iteration, with all schedules of this length."""
    bonus = recipes.SPEAR.chain("reward")[1]
    changed = {name: replace(getattr(bonus, name), iterations=length) for name in ("coefficient", "at_most")}
    replay = recipes.SPEAR.replay
    return recipes.SPEAR.replace(
        reward=(recipes.SPEAR.chain("reward")[0], replace(bonus, **changed)),
        replay=replace(replay, coefficient=replace(replay.coefficient, iterations=length)),
    ).at(iteration)


@EXAMPLES.by("tool reward over training")
def tool_reward(example: Example) -> Found:
    members = [
        {**member, "facts": {"tool_calls": calls}}
        for member, calls in zip(answers([1] * 3, [0] * 3), example.values["n"].tolist(), strict=True)
    ]

    def bonus(iteration: int) -> Value:
        recipe = recipe_at(iteration).replace(advantage=recipes.GRPO.advantage, weight=None)
        return computed(recipe, ["draw.score"], members=members)["draw.score"]

    return {"step_50": bonus(50), "step_101": bonus(101)}


@EXAMPLES.by("weight of the replay loss")
def weight(example: Example) -> Found:
    del example
    return {"weight": np.array([recipe_at(iteration).replay.coefficient for iteration in (0, 50, 100, 150)], float)}


@EXAMPLES.by("covariances")
def covariances(example: Example) -> Found:
    advantage_values, logprobs = example.values["A"], example.values["lp"]
    policy = next(iter(recipes.SPEAR.losses())).loss
    losses = given_advantages(recipes.SPEAR, constant=1.0, mask=replace(policy.mask, low=2.0, high=60.0))
    gradient = single_tokens(losses, logprobs, logprobs, advantage_values)["gradient.logprob"]
    return {"candidate": gradient == 0, "tokens_left_out": np.sum(gradient == 0)}


@EXAMPLES.by("on-policy advantages")
def on_policy(example: Example) -> Found:
    recipe = recipes.SPEAR.replace(advantage=recipes.SPEAR.chain("advantage")[0], weight=None, replay=None)
    one, other = advantages(plain_reward(recipe), example.values["R_a"], example.values["R_b"])
    return {"advantage_a": one, "advantage_b": other}


PLAIN = given_advantages(recipes.SPEAR, constant=1.0, mask=None)
UNMASKED = CommonExamples(
    EXAMPLES, recipes.GRPO, losses=PLAIN, but=["a group of one", "one rollout of four has no score (convention)"]
)
"""The random tokens that the covariance leaves out are in an example of their own."""


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
