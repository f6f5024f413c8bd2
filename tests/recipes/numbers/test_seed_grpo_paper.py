"""Worked examples of the paper of seed_grpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, path_of
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipes.seed_grpo import AnswerEntropyScaled

EXAMPLES = PaperExamples("seed_grpo")
UNSCORED = "one rollout of four has no score (convention)"
SECOND = "the second optimizer step keeps the factor"
CommonExamples(EXAMPLES, recipes.SEED_GRPO, but=[UNSCORED])


def answered(rewards: Value, clusters: list[int], group: str = "task") -> list[dict[str, Any]]:
    """Return a group of one-token rollouts with answers of these clusters; an unscored one has reward `nan`."""
    return [
        {
            "group": group,
            "path": "1 | 3",
            "facts": {"answer_cluster": f"c{cluster}", "answer_parsed": 1},
            **({} if np.isnan(reward) else {"reward": float(reward)}),
        }
        for reward, cluster in zip(rewards, clusters, strict=True)
    ]


def clusters_with_shares(*masses: float, size: int) -> list[int]:
    """Return clusters of a number of answers that give these shares."""
    return np.repeat(np.arange(len(masses)), np.round(np.array(masses) * size).astype(int)).tolist()


def scaled(members: list[dict[str, Any]], **options: Any) -> tuple[Value, Value]:
    """Return scaled advantages, and factors."""
    recipe = recipes.SEED_GRPO.replace(weight=AnswerEntropyScaled(**options))
    result = computed(recipe, ["draw.advantage", "draw.weight"], members=members)
    return result["draw.advantage"] * result["draw.weight"], result["draw.weight"]


@EXAMPLES.by("a group of eight with clusters of five, two and one")
def eight(example: Example) -> Found:
    given = example.values
    alpha, size = float(given["alpha"]), int(given["G"])
    members = answered(given["R"], clusters_with_shares(*given["p"], size=size))
    linear, factors = scaled(members, kind="linear", coefficient=alpha)
    return {
        "semantic_entropy": (1.0 - factors[0]) / alpha * np.log(size),
        "linear": linear,
        "exponential": scaled(members, kind="exponential", coefficient=alpha)[0],
    }


@EXAMPLES.by("the same clusters with the entropy of the port")
def port(example: Example) -> Found:
    given = example.values
    size = int(given["G"])
    members = answered(np.arange(size) % 2, clusters_with_shares(*given["p"], size=size))
    half = scaled(members, entropy="exact", kind="exponential", coefficient=float(given["alpha"]))[1]
    theirs = scaled(members, entropy="exact", kind="inverse", coefficient=0.0417)[1]
    return {"factor": half[0], "factor_of_the_port": theirs[0]}


@EXAMPLES.by("groups of four and of three have different maxima")
def maxima(example: Example) -> Found:
    members = [
        *answered(np.array([1, 0, 0, 0]), clusters_with_shares(*example.values["p4"], size=4), "four"),
        *answered(np.array([1, 0, 0]), clusters_with_shares(*example.values["p3"], size=3), "three"),
    ]
    factors = scaled(members, kind="exponential", coefficient=float(example.values["alpha"]))[1]
    return {"factor": factors[[0, 4]]}


@EXAMPLES.by("one meaning keeps the signal, all different damp it most")
def ends(example: Example) -> Found:
    given = example.values
    size = int(given["G"])
    members = [
        *answered(np.array([1, 0, 0, 0]), clusters_with_shares(*given["one"], size=size), "one"),
        *answered(np.array([1, 0, 0, 0]), clusters_with_shares(*given["all"], size=size), "all"),
    ]
    return {"factor": scaled(members, coefficient=float(given["alpha"]))[1][[0, size]]}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    return {"advantage": scaled(answered(example.values["R"], [0]))[0]}


@EXAMPLES.by(UNSCORED)
def unscored(example: Example) -> Found:
    """Three different answers have x = 1; the answer of the fourth would change it."""
    members = answered(np.array([*example.values["R"], np.nan]), [0, 1, 2, 2])
    factors = scaled(members, coefficient=1.0 - float(example.values["factor"]))[0]
    assert not factors[-1]
    return {"advantage": np.array([*factors[:-1], np.nan])}


def with_factor(factor: float, ratio: Value, advantages: Value, mask: Value) -> Mapping[str, Value]:
    """Return loss and gradient of a rollout whose group has this factor; the untrained member answers differently."""
    recipe = given_advantages(recipes.SEED_GRPO).replace(
        advantage=GroupRelative(column="given", level="token", center="none", scale="none"),
        weight=AnswerEntropyScaled(coefficient=1.0 - factor),
    )
    one, other = answered(np.zeros(2), [0, 1])
    members = [{**one, "path": path_of(mask)}, {**other, "trainable": [0]}]
    new = np.log(ratio[mask > 0]) - 1.0
    tokens = {"given": [*advantages[mask > 0], 0.0]}
    names = ["loss", "gradient.logprob"]
    return computed(recipe, names, members=members, columns={"token": tokens}, policy={"logprob": [*new, -1.0]})


@EXAMPLES.by("clipped loss with scaled advantages, tool tokens out")
def clipped(example: Example) -> Found:
    given = example.values
    advantages = np.full(len(given["ratio"]), float(given["A"]))
    return {"loss": with_factor(float(given["factor"]), given["ratio"], advantages, given["m"])["loss"]}


@EXAMPLES.by(SECOND)
def second_step(example: Example) -> Found:
    given = example.values
    result = with_factor(float(given["factor"]), given["second"], given["A"], np.ones(len(given["A"])))
    return {"loss": result["loss"], "has_gradient": result["gradient.logprob"][:-1] != 0}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
