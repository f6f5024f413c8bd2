"""Worked examples of the paper of iter_research, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip
from agentrl_core.recipe import Recipe
from agentrl_core.weight import SelectDraws

EXAMPLES = PaperExamples("iter_research")
DISCOUNTED, RELATIVE = recipes.ITER_RESEARCH.chain("advantage")
LOSSES = given_advantages(recipes.ITER_RESEARCH, clip=Clip(0.2, 0.2))
"""The recipe with the clip range of the examples, because the sources give none."""
COMMON = CommonExamples(EXAMPLES, recipes.ITER_RESEARCH, losses=LOSSES)
BY_ROUND = LOSSES.replace(advantage=GroupRelative(column="reward", level="step", center="none", scale="none"))
"""The recipe with the advantages of an example as rewards of rounds."""


def rounds(counts: Sequence[int], rewards: Sequence[float]) -> list[dict[str, Any]]:
    """Return trajectories of one-token rounds, each answered by a tool; a reward of `nan` is missing."""
    return [
        {"path": "1 | " + " ~ 9 | ".join(["3"] * count), **({} if np.isnan(reward) else {"reward": float(reward)})}
        for count, reward in zip(counts, rewards, strict=True)
    ]


def credited(recipe: Recipe, members: list[dict[str, Any]]) -> Value:
    return computed(recipe, ["token.advantage"], members=members)["token.advantage"]


@EXAMPLES.by("trajectories of three, two and one rounds")
def three_two_one(example: Example) -> Found:
    members = rounds([3, 2, 1], example.values["R"].tolist())
    return {
        "reward": credited(recipes.ITER_RESEARCH.replace(advantage=DISCOUNTED), members),
        "advantage_n_minus_1": credited(recipes.ITER_RESEARCH, members),
    }


@EXAMPLES.by("the same round of a short and of a long trajectory")
def third_round(example: Example) -> Found:
    assert float(example.values["g"]) == DISCOUNTED.gamma
    rewards = credited(recipes.ITER_RESEARCH.replace(advantage=DISCOUNTED), rounds([5, 20], [1, 1]))
    return {"short": rewards[2], "long": rewards[5 + 2]}


@EXAMPLES.by("rows over ranks")
def multiple(example: Example) -> Found:
    """An option, on trajectories of one round each."""
    recipe = recipes.ITER_RESEARCH.replace(weight=SelectDraws(column="score", multiple=int(example.values["DP"])))
    kept_counts = [
        computed(recipe, ["draw.keep"], members=rounds([1] * count, list(range(count))))["draw.keep"].sum()
        for count in example.values["C"].astype(int).tolist()
    ]
    return {"kept": np.array(kept_counts)}


@EXAMPLES.by("one row: report and action are trained, the tool result is input")
def one_row(example: Example) -> Found:
    given = example.values
    members = [
        {"path": path, "reward": reward}
        for path, reward in zip(("1 9 | 3*4", "1 9 | 3*2"), given["A"].tolist(), strict=True)
    ]
    policy = {"logprob": (np.concatenate([given["d_a"], given["d_b"]]) - 1.0).tolist()}
    names = ["loss", "gradient.logprob"]
    free = given_advantages(recipes.ITER_RESEARCH, clip=None)
    gradient = computed(free, names, members=members, policy=policy)["gradient.logprob"]
    return {
        "loss": computed(LOSSES, names, members=members, policy=policy)["loss"],
        "ratio_a": -2 * 4 * gradient[:1] / given["A"][0],
        "ratio_b": -2 * 2 * gradient[-1:] / given["A"][1],
    }


@EXAMPLES.by("one mean over rows")
def by_row(example: Example) -> Found:
    long, short = example.values["A_a"].tolist(), example.values["A_b"].tolist()
    members = rounds([3, 1], [0.0, 0.0])
    for member, rewards in zip(members, (long, short), strict=True):
        member["steps"] = [{"reward": reward} for reward in rewards]
    return {"loss": computed(BY_ROUND, ["loss"], members=members)["loss"]}


@EXAMPLES.by("one trajectory of three has no score (convention)")
def unscored(example: Example) -> Found:  # noqa: ARG001 - all given is in the text
    result = credited(recipes.ITER_RESEARCH, rounds([2, 1, 2], [1, 0, np.nan]))
    assert not result[3:].any()
    return {"advantage": [*result[:3], np.nan, np.nan]}


@EXAMPLES.by("the second optimizer step of a batch")
def later_step(example: Example) -> Found:
    return COMMON.second_step(example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
