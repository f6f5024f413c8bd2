"""Worked examples of the paper of bnpo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("bnpo")
CommonExamples(EXAMPLES, recipes.BNPO)
SINGLE = given_advantages(recipes.BNPO)


def pass_rates(*rates: float) -> list[Value]:
    """Return advantages of groups of four with these shares of right answers, the right ones first."""
    groups = [np.arange(4) < round(4 * rate) for rate in rates]
    return advantages(plain_reward(recipes.BNPO), *(group.astype(float) for group in groups))


@EXAMPLES.by("three prompts of four, five and four responses")
def three(example: Example) -> Found:
    group_advantages = advantages(plain_reward(recipes.BNPO), *(example.values[name] for name in ("R1", "R2", "R3")))
    return {f"advantage_{place}": value for place, value in enumerate(group_advantages, 1)}


@EXAMPLES.by("alpha = beta = 3/2 is GRPO with a constant")
def as_grpo(example: Example) -> Found:
    group_advantages = pass_rates(*example.values["p"])
    return {
        "advantage_right": np.array([each[0] for each in group_advantages]),
        "advantage_wrong": np.array([each[-1] for each in group_advantages]),
    }


@EXAMPLES.by("all right or all wrong gives advantage 0 although the density is 0")
def alike(example: Example) -> Found:
    return {"advantage": advantages(plain_reward(recipes.BNPO), example.values["R"], [1.0, 0.0], [1.0, 0.0, 0.0])[0]}


@EXAMPLES.by("a batch of one prompt")
def alone(example: Example) -> Found:
    return {"advantage": advantages(plain_reward(recipes.BNPO), example.values["R"])[0]}


@EXAMPLES.by("two reward components are averaged after their own normalisation")
def components(example: Example) -> Found:
    """Pass rates 1/4, 1/2, 3/4 of accuracy have Beta(3/2, 3/2); those of format, 0, 1/2, 1, have Beta(1, 1)."""
    given = example.values
    accuracy = [[1, 0, 0, 0], given["R_acc"], [1, 1, 1, 0]]
    layout = [[0, 0, 0, 0], given["R_format"], [1, 1, 1, 1]]
    members = [
        {"group": f"{place}", "path": "1 | 3", "reward": 0, "rewards": {"accuracy": float(one), "format": float(two)}}
        for place, pair in enumerate(zip(accuracy, layout, strict=True))
        for one, two in zip(*pair, strict=True)
    ]
    links = (
        GroupRelative(column="reward.accuracy", scale="beta", coefficient=0.5),
        GroupRelative(column="reward.format", scale="beta", coefficient=0.5, add=True),
    )
    result = computed(recipes.BNPO.replace(advantage=links), ["draw.advantage"], members=members)
    return {"advantage": result["draw.advantage"][4:6]}


@EXAMPLES.by("sums of unequal length, averaged over responses")
def sums(example: Example) -> Found:
    given = example.values
    ratio = np.concatenate([given["ratio_a"], given["ratio_b"]])
    members = answers([len(given["ratio_a"]), len(given["ratio_b"])], [float(given["A_a"]), float(given["A_b"])])
    policy = {"logprob": (np.log(ratio) - 1.0).tolist()}
    return {"loss": computed(SINGLE, ["loss"], members=members, policy=policy)["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
