"""Worked examples of the paper of copo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative, Normalisation
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.copo import Consistency

EXAMPLES = PaperExamples("copo")
COPO = recipes.COPO.replace(minibatches=1)
PLAIN = Normalisation(center="none", scale="none")


def with_options(**options: Any) -> Recipe:
    """Return the recipe with other options of its advantage."""
    (advantage,) = COPO.chain("advantage")
    assert isinstance(advantage, Consistency)
    return COPO.replace(advantage=replace(advantage, **options))


def answered(
    rewards: Sequence[float], clusters: Sequence[int], group: str = "task", **more: Any
) -> list[dict[str, Any]]:
    """Return a group of one-token rollouts with answers of these clusters; an unscored one has reward `nan`."""
    return [
        {
            "group": group,
            "path": "1 | 3",
            "facts": {"answer_cluster": f"c{cluster}", "answer_parsed": 1},
            **({} if np.isnan(reward) else {"reward": float(reward)}),
            **more,
        }
        for reward, cluster in zip(rewards, clusters, strict=True)
    ]


def advantages(members: list[dict[str, Any]], column: str = "advantage", **options: Any) -> Value:
    return computed(with_options(**options), [f"draw.{column}"], members=members)[f"draw.{column}"]


@EXAMPLES.by("three prompts: agreement on a right answer, on a wrong one, and disagreement")
def three(example: Example) -> Found:
    """Compare weights: the third group's right answers have only the local positive part, the first's the global."""
    given = example.values
    first, last = slice(0, 1), slice(7, 12)
    members = [
        *answered(given["R1"], [0] * 4, "right"),
        *answered(given["R2"], [0] * 3, "wrong"),
        *answered(given["R3"], [0, 0, 1, 1, 2], "mixed"),
    ]
    everyone, local = advantages(members, kind="global"), advantages(members, kind="local")
    positive = advantages(members, "advantage_positive")
    weight = positive[last][0] / local[last][0]
    return {
        "global_reward": advantages(members, kind="global", normalisation=PLAIN)[[0, 4, 7]],
        "global_advantage": everyone[[0, 4, 7]],
        "entropy_3": 1.0 + np.log(weight / (1.0 - weight)) / given["k"],
        "weight_agreement": 1.0 - positive[first] / everyone[first],
        "weight_3": weight,
        "local_advantage_3": local[last],
    }


@EXAMPLES.by("the coefficient of the global reward")
def coefficient(example: Example) -> Found:
    members = answered([1, 1, 0, 0, 0], [0, 0, 1, 1, 2])
    group_advantages = advantages(members, kind="global", coefficient="entropy", normalisation=PLAIN)
    return {
        "global_reward": group_advantages[0],
        "lambda": (1.0 - group_advantages[0] / example.values["right"]) / example.values["H"],
    }


@EXAMPLES.by("weights by entropy for six responses")
def weights(example: Example) -> Found:
    """Scores have mean 0 and no baseline: the advantage of a 1 is its weight."""
    clusters = ([0] * 6, [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 2], [0, 1, 2, 3, 4, 5])
    members = [each for place, group in enumerate(clusters) for each in answered([1, -1] * 3, group, f"{place}")]
    assert len(example.values["H"]) == len(clusters)
    return {
        "weight": advantages(members, normalisation=PLAIN)[::6],
        "weight_k_20": advantages(members, steepness=20.0, normalisation=PLAIN)[::6],
    }


def blended(
    scores: Sequence[float], own: Sequence[int], weight: float, everyone: float, ratio: Value, **more: Any
) -> Found:
    """Return loss and gradient of a group with two kinds of answers, H = 1, and this weight and global advantage.

    Half of the scores are 1 and half 0, so the local advantages are 1 and -1, by the std of n. The global one compares
    the group's mean 1/2 with those of two other groups, which are not trained. `own` are the trained rows.
    """
    root = np.sqrt((6.0 - 3.0 * everyone**2) / 4.0)
    others = [0.5 + (-1.5 * everyone + sign * root) for sign in (1.0, -1.0)]
    members = answered(scores, [int(score) for score in scores])
    for member, is_own in zip(members, own, strict=True):
        member |= {"logprobs": [-2.0], "trainable": [is_own]}
    members += [each for name, score in zip("xy", others, strict=True) for each in answered([score], [0], name)]
    for member in members[len(scores) :]:
        member |= {"trainable": [0]}
    options = {
        "threshold": 1.0 - np.log(weight / (1.0 - weight)) / 5.0,
        "normalisation": Normalisation(ddof=0, eps=0.0),
        **more,
    }
    policy = {"logprob": [*(np.log(ratio) - 2.0), -1.0, -1.0]}
    return dict(computed(with_options(**options), ["loss", "gradient.logprob"], members=members, policy=policy))


@EXAMPLES.by("blend of two losses: reward 0 takes the global one alone")
def blend(example: Example) -> Found:
    given = example.values
    data = (given["r"], [1] * 4, float(given["w"]), float(given["A_g"][0]), given["ratio"])
    return {"loss": blended(*data)["loss"], "loss_only_soft": blended(*data, kind="soft")["loss"]}


@EXAMPLES.by("mean over tokens of a response, then over responses")
def means(example: Example) -> Found:
    given = example.values
    losses = np.concatenate([given["token_a"], given["token_b"]])
    recipe = given_advantages(COPO).replace(
        advantage=GroupRelative(column="given", level="token", center="none", scale="none")
    )
    members = answers([len(given["token_a"]), len(given["token_b"])], [1, 1])
    return {
        "loss": computed(recipe, ["loss"], members=members, columns={"token": {"given": (-losses).tolist()}})["loss"]
    }


@EXAMPLES.by("a dual clip for the global loss too")
def dual(example: Example) -> Found:
    given = example.values
    ratio = np.array([float(given["ratio"]), 1.0])
    data = ([1, 0], [1, 0], float(given["w"]), float(given["A_g"]), ratio)
    return {
        "global_loss": blended(*data, kind="global")["loss"],
        "local_loss": blended(*data, kind="local")["loss"],
        "loss": blended(*data)["loss"],
    }


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    members = answered([*example.values["R"], np.nan], [0, 1, 1, 1])
    local = advantages(members, kind="local")
    assert not local[-1]
    return {
        "local_advantage": np.array([*local[:-1], np.nan]),
        "global_reward": advantages(members, kind="global", normalisation=PLAIN)[0],
    }


@EXAMPLES.by("a group of one: local advantage is the reward, its weight is that of agreement")
def alone(example: Example) -> Found:
    """Compare with the option of the code."""
    raw = Normalisation(singleton="raw")
    return {"local_advantage": advantages(answered([float(example.values["R"])], [0]), kind="local", normalisation=raw)}


@EXAMPLES.by("the second optimizer step: both losses clip on their own")
def second_step(example: Example) -> Found:
    given = example.values
    ratio = np.exp(given["second"] - given["old"])
    data = ([1, 0], [1, 1], float(given["w"]), float(given["A_g"][0]), ratio)

    def moves(kind: str) -> Value:
        return blended(*data, kind=kind)["gradient.logprob"][:2] != 0

    return {
        "local_has_gradient": moves("local"),
        "global_has_gradient": moves("global"),
        "loss": blended(*data, kind="soft")["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
