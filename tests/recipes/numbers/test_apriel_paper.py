"""Worked examples of the paper of apriel, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, path_of, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("apriel")
LOSSES = given_advantages(recipes.APRIEL)
OUTCOME, PENALTY = recipes.APRIEL.chain("reward")


def shares(base: Value, rollout_counts: Value) -> Value:
    """Return the shares of domains after a number of rollouts of each."""
    names = [f"domain {place}" for place in range(len(base))]
    targets = tuple(zip(names, base.tolist(), strict=True))
    realised = dict(zip(names, (rollout_counts / rollout_counts.sum()).tolist(), strict=True))
    return replace(recipes.APRIEL.select.quota, targets=targets).shares({"realised": realised}, names)


def answered(lengths: Sequence[int], right: Sequence[float], group: str = "a") -> list[dict[str, Any]]:
    members = answers(lengths, right, group=group)
    return [{**member, "success": bool(member["reward"])} for member in members]


def credited(members: list[dict[str, Any]], **options: Any) -> Found:
    """Return scores and advantages, with a penalty for other lengths."""
    recipe = recipes.APRIEL.replace(reward=(OUTCOME, replace(PENALTY, **options)))
    return dict(computed(recipe, ["draw.score", "draw.advantage"], members=members))


@EXAMPLES.by("weights of five domains")
def five(example: Example) -> Found:
    return {"probability": shares(example.values["base"], example.values["done"])}


@EXAMPLES.by("bounds and a domain without a rollout")
def bounds(example: Example) -> Found:
    return {"probability": shares(example.values["base"], example.values["done"])}


@EXAMPLES.by("penalties of a group of five and of three")
def penalties(example: Example) -> Found:
    """All lengths are a quarter of those of the example, which changes no share."""
    given = example.values
    lengths = [(given[name] / 4).astype(int).tolist() for name in ("l", "l_b")]
    members = answered(lengths[0], given["c"].tolist()) + answered(lengths[1], given["c_b"].tolist(), "b")
    result = credited(members, longest=PENALTY.longest // 4, buffer=PENALTY.buffer // 4)
    scores, compared = np.split(result["draw.score"], [5]), np.split(result["draw.advantage"], [5])
    return {"reward_a": scores[0], "advantage_a": compared[0], "reward_b": scores[1], "advantage_b": compared[1]}


@EXAMPLES.by("the exponent")
def exponent(example: Example) -> Found:
    """A right answer with this penalty, in groups of eight with these shares of right answers."""
    length = 90 - round(10 * float(example.values["p"]))
    members = [
        member
        for place, rate in enumerate(example.values["rate"].tolist())
        for member in answered([length] * 8, [float(at < 8 * rate) for at in range(8)], f"{place}")
    ]
    results = {
        power: credited(members, longest=100, buffer=10, power=power)["draw.score"][::8] - 1 for power in (1.0, 2.0)
    }
    return {"penalty_gamma_1": results[PENALTY.power], "penalty_gamma_2": results[2.0]}


@EXAMPLES.by("a rollout alone")
def alone(example: Example) -> Found:
    return {"advantage": advantages(plain_reward(recipes.APRIEL), [float(example.values["R"])])[0]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    lengths = np.round(90 - 10 * example.values["p"]).astype(int).tolist()
    result = credited(
        [*answered(lengths, example.values["c"].tolist()), {"path": "1 | 3", "group": "a"}], longest=100, buffer=10
    )
    assert result["draw.advantage"][3] == 0
    return {"reward": result["draw.score"][:3], "advantage": [*result["draw.advantage"][:3], np.nan]}


@EXAMPLES.by("sequences that an older policy sampled")
def older(example: Example) -> Found:
    given = example.values
    own_tokens = given["m_a"] > 0
    members = [
        {"path": path_of(given["m_a"]), "reward": float(given["A"][0])},
        {"path": "1 | 3 3", "reward": float(given["A"][1])},
    ]
    policy = {"logprob": (np.concatenate([given["d_a"][own_tokens], given["d_b"]]) - 1.0).tolist()}
    free = given_advantages(recipes.APRIEL, clip=None)
    gradient = computed(free, ["gradient.logprob"], members=members, policy=policy)["gradient.logprob"]
    return {
        "loss": computed(LOSSES, ["loss"], members=members, policy=policy)["loss"],
        "ratio_a": -2 * gradient[:1] / given["A"][0],
        "ratio_b": -2 * gradient[-1:] / given["A"][1],
    }


@EXAMPLES.by("a later step of the same weights' data")
def later_step(example: Example) -> Found:
    given, results = example.values, {}
    counts = given["n"].astype(int)
    members = answers(counts.tolist(), given["A"].tolist())
    for step in ("first", "second"):
        policy = {"logprob": np.repeat(given[step] - 1.0, counts).tolist()}
        numbers = computed(LOSSES, ["loss", "gradient.logprob"], members=members, policy=policy)
        results[step] = numbers["loss"]
    moves = np.split(numbers["gradient.logprob"], np.cumsum(counts)[:-1])
    return {**results, "has_gradient": np.array([each.any() for each in moves])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
