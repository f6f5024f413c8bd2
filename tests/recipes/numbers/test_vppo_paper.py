"""Worked examples of the paper of vppo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("vppo")
VPPO = recipes.VPPO.replace(minibatches=1)
UNSCORED = "one rollout of four has no score (convention)"
CommonExamples(EXAMPLES, VPPO, but=[UNSCORED])
ALONE = given_advantages(VPPO, drift=None)
"""The clipped loss of given advantages, without the drift."""


def masked(old: Value, new: Value, advantages: Value, mask: Value, lengths: Sequence[int]) -> Found:
    """Return loss and gradient of rollouts whose tokens have these advantages and, from their dependence, this mask."""
    recipe = ALONE.replace(advantage=GroupRelative(column="given", level="token", center="none", scale="none"))
    members = answers(lengths, [1] * len(lengths))
    for member, logprobs in zip(members, np.split(old, np.cumsum(lengths)[:-1]), strict=True):
        member["logprobs"] = logprobs.tolist()
    tokens = {"given": advantages.tolist(), "dependency": mask.tolist()}
    names = ["loss", "gradient.logprob"]
    return dict(computed(recipe, names, members=members, columns={"token": tokens}, policy={"logprob": new.tolist()}))


def perturbed(dependence: Value) -> Value:
    """Return log-probs of tokens, -1 with the image, with this dependence: e^d - d - 1 = S by bisection."""
    low, high = np.zeros_like(dependence), np.full_like(dependence, 5.0)
    for _ in range(60):
        middle = (low + high) / 2
        below = np.expm1(middle) - middle < dependence
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low - 1.0


def shaped(recipe: Recipe, rewards: Value, dependence: Value, groups: Sequence[int]) -> Found:
    """Return factors and shaped advantages of one-token rollouts; an unscored one has reward `nan`."""
    members = [
        {"group": f"{group}", "path": "1 | 3", **({} if np.isnan(reward) else {"reward": float(reward)})}
        for group, reward in zip(groups, rewards, strict=True)
    ]
    columns = {"token": {"perturbed_logprob": perturbed(dependence).tolist()}}
    result = computed(recipe, ["draw.advantage", "draw.weight"], members=members, columns=columns)
    return {"factor": result["draw.weight"], "advantage": result["draw.advantage"] * result["draw.weight"]}


@EXAMPLES.by("dependence and mask of responses of five and of three tokens")
def dependence(example: Example) -> Found:
    given = example.values
    (policy,) = ALONE.chain("loss")
    count = len(given["old_a"])
    members = answers([count, len(given["old_b"])], [1, 0])
    for member, name in zip(members, "ab", strict=True):
        member["logprobs"] = given[f"old_{name}"].tolist()
    columns = {"token": {"perturbed_logprob": [*given["aug_a"], *given["aug_b"]]}}
    names = ["token.dependency", "gradient.logprob"]
    result = computed(VPPO.replace(loss=policy), names, members=members, columns=columns)
    values, spoke = result["token.dependency"], result["gradient.logprob"] != 0
    return {
        "dependence_a": values[:count],
        "mask_a": spoke[:count],
        "dependence_b": values[count:],
        "mask_b": spoke[count:],
    }


@EXAMPLES.by("factors of four responses, two groups in one mini-batch")
def factors(example: Example) -> Found:
    plain = plain_reward(VPPO).replace(advantage=GroupRelative(center="none", scale="none"))
    result = shaped(plain, example.values["A"], example.values["S"], [0, 0, 1, 1])
    return {**result, "mean_factor": result["factor"].mean()}


@EXAMPLES.by("masked loss over all response tokens, and the penalty")
def masked_loss(example: Example) -> Found:
    """The penalty is that of the drift from log-probs of 0, with advantages of 0."""
    given, old = example.values, np.full(len(example.values["m"]), -3.0)
    result = masked(old, old + np.log(given["ratio"]), given["A"], given["m"], [5, 3])
    tokens = {"given": [0.0] * len(old), "dependency": given["m"].tolist(), "perturbed_logprob": old.tolist()}
    recipe = given_advantages(VPPO).replace(
        advantage=GroupRelative(column="given", level="token", center="none", scale="none")
    )
    members = [
        {**member, "logprobs": [0.0] * size} for member, size in zip(answers([5, 3], [1, 1]), (5, 3), strict=True)
    ]
    policy = {"logprob": given["lp"].tolist()}
    penalty = computed(recipe, ["loss"], members=members, columns={"token": tokens}, policy=policy)["loss"]
    return {"policy_loss": result["loss"], "penalty": penalty}


@EXAMPLES.by(UNSCORED)
def unscored(example: Example) -> Found:
    """The dependences have the factors of the example; that of the fourth would change them."""
    factor = example.values["factor"]
    dependences = np.array([*(factor - factor.min()), 2.0])
    advantages = shaped(plain_reward(VPPO), np.array([*example.values["R"], np.nan]), dependences, [0] * 4)["advantage"]
    assert not advantages[-1]
    return {"advantage": np.array([*advantages[:-1], np.nan])}


@EXAMPLES.by("the second optimizer step keeps the mask: it depends on old log-probabilities")
def second_step(example: Example) -> Found:
    given = example.values
    result = masked(given["old"], given["second"], given["A"], given["m"], [len(given["m"])])
    return {"loss": result["loss"], "has_gradient": result["gradient.logprob"] != 0}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
