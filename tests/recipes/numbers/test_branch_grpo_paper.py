"""Worked examples of the paper of branch_grpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import Schedule, recipes
from agentrl_core.advantage import GroupRelative, TreeRelative
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.branch_grpo import DepthWindow, FixedDepthBranching

EXAMPLES = PaperExamples("branch_grpo")
BRANCH = plain_reward(recipes.BRANCH_GRPO)
EDGES = given_advantages(BRANCH).replace(
    advantage=GroupRelative(column="given", level="step", center="none", scale="none")
)


def tree(rewards: Value) -> list[dict[str, Any]]:
    """Return a tree whose first turn, its root, has the children a, with two leaves, and b, with the others.

    Members are in the order of draws: forks that begin earlier come first, so that the second leaf of a is the last.
    """
    members: list[dict[str, Any]] = [
        {"path": "1 | 2 ~ 9 | 3 ~ 9 | 4"},
        {"fork": 0, "nodes": 2, "path": "~ 9 | 5 ~ 9 | 6"},
        *({"fork": 1, "nodes": 2, "path": "~ 9 | 7"} for _ in rewards[3:]),
        {"fork": 0, "nodes": 4, "path": "~ 9 | 8"},
    ]
    ordered_rewards = [rewards[0], *rewards[2:], rewards[1]]
    return [
        {**member, **({} if np.isnan(reward) else {"reward": float(reward)})}
        for member, reward in zip(members, ordered_rewards, strict=True)
    ]


def by_depth(recipe: Recipe, members: list[dict[str, Any]]) -> Value:
    """Return step advantages of a tree, a row for each leaf: those of a come first."""
    advantages = computed(recipe, ["step.advantage"], members=members)["step.advantage"].reshape(-1, 3)
    return advantages[[0, -1, *range(1, len(advantages) - 1)]]


@EXAMPLES.by("a tree of three leaves: mean over leaves, advantage by depth")
def three(example: Example) -> Found:
    members = tree(example.values["leaves"])
    (advantage,) = BRANCH.chain("advantage")
    assert isinstance(advantage, TreeRelative)
    values = by_depth(BRANCH.replace(advantage=replace(advantage, kind="none")), members)
    step_advantages = by_depth(BRANCH, members)
    return {
        "value_of_root": values[0, 0],
        "advantage_root": step_advantages[0, 0],
        "advantage_depth_1": step_advantages[[0, 2], 1],
        "advantage_depth_2": step_advantages[:, 2],
    }


@EXAMPLES.by("four leaves, weighted level by level and by path")
def weighted(example: Example) -> Found:
    given = example.values
    members = tree(given["r"])
    edges_of_b = [[given["lp_top"][1], given["lp_b"][0]], [given["lp_b"][1]]]
    member_logprobs = [[-1.0, given["lp_top"][0], given["lp_a"][0]], *edges_of_b, [given["lp_a"][1]]]
    for member, logprobs in zip(members, member_logprobs, strict=True):
        member["logprobs"] = [float(logprob) for logprob in logprobs]
    (advantage,) = BRANCH.chain("advantage")
    assert isinstance(advantage, TreeRelative)
    by_code = by_depth(BRANCH.replace(advantage=replace(advantage, fuse="path", kind="none")), members)
    by_paper = by_depth(BRANCH.replace(advantage=replace(advantage, kind="none")), members)
    np.testing.assert_allclose(by_paper[:, 1], by_code[:, 1])
    return {
        "value_of_a": by_code[0, 1],
        "value_of_b": by_code[2, 1],
        "root_by_code": by_code[0, 0],
        "root_by_paper": by_paper[0, 0],
    }


@EXAMPLES.by("a depth without difference has advantage 0, and a large one is clipped")
def clipped(example: Example) -> Found:
    """Of n leaves, the only right one has (n - 1) / sqrt(n), the others -1 / sqrt(n)."""
    small_group = computed(BRANCH, ["step.advantage"], members=answers([1] * 4, example.values["V"].tolist()))
    count = round(float(example.values["A_large"][1]) ** -2)
    large_group = computed(BRANCH, ["step.advantage"], members=answers([1] * count, [1.0] + [0.0] * (count - 1)))
    return {"advantage": small_group["step.advantage"], "edge": large_group["step.advantage"][:2]}


@EXAMPLES.by("each edge once, with its own ratio")
def edges(example: Example) -> Found:
    """Turns of two tokens: two branches with two more turns each share the first edge."""
    given = example.values
    members = [{"path": "1 | 2*2 ~ 9 | 3*2 ~ 9 | 4*2"}, {"fork": 0, "nodes": 2, "path": "~ 9 | 5*2 ~ 9 | 6*2"}]
    scored_members = [{**member, "reward": 0} for member in members]
    rows = [0, 1, 2, 0, 3, 4]
    moves = np.repeat(given["d"][rows], 2) + np.tile([0.3, -0.3], 6)
    result = computed(
        EDGES,
        ["loss", "gradient.logprob"],
        members=scored_members,
        columns={"step": {"given": given["A"][rows].tolist()}},
        policy={"logprob": (moves - 1.0).tolist()},
    )
    gradients = result["gradient.logprob"].reshape(-1, 2)
    assert not gradients[3].any()
    return {"loss": result["loss"], "has_gradient": gradients[[0, 1, 2, 4, 5]].any(axis=1)}


@EXAMPLES.by("a window of depths that slides and stops")
def window(example: Example) -> Found:
    """The recipe's schedule from another first depth: depth d is turn d - 1, and step s is iteration s - 1."""
    given = example.values
    (weight,) = recipes.BRANCH_GRPO.chain("weight")
    assert isinstance(weight, DepthWindow)
    assert isinstance(weight.first, Schedule)
    base, stop = int(given["base"][0]) - 1, int(given["stop"]) - 1
    shift = base - stop
    shifted_first = replace(weight.first, start=base, end=stop, iterations=int(given["interval"]) * shift, stairs=shift)
    shifted_weight = replace(weight, first=shifted_first, width=len(given["base"]))

    def pruned(step: int) -> Value:
        batch = computed(
            BRANCH.replace(weight=shifted_weight.at(step - 1)),
            ["token.keep"],
            members=[{"path": "1 " + " ~ 9 ".join(["| 3"] * 20), "reward": 1}],
        )
        return np.flatnonzero(batch["token.keep"] == 0) + 1.0

    return {f"pruned_at_{step}": pruned(step) for step in (29, 30, 75, 200)}


@EXAMPLES.by("width pruning keeps the advantages of the whole tree")
def width(example: Example) -> Found:
    program = recipes.BRANCH_GRPO.rollout
    assert isinstance(program, FixedDepthBranching)
    worth, families = example.values["V"], np.array([0, 0, 1, 1])
    advantages = computed(BRANCH, ["step.advantage"], members=answers([1] * 4, worth.tolist()))["step.advantage"]
    return {
        "mode_1": advantages * replace(program, keep="best").kept(worth, families),
        "mode_2": advantages * replace(program, keep="extremes").kept(worth, families),
    }


@EXAMPLES.by("one leaf of four has no score (convention)")
def unscored(example: Example) -> Found:
    step_advantages = by_depth(BRANCH, tree(np.array([*example.values["leaves"], np.nan])))
    assert not step_advantages[-1, -1]
    return {
        "advantage_depth_1": step_advantages[[0, 2], 1],
        "advantage_of_leaves": np.array([*step_advantages[:-1, 2], np.nan]),
    }


@EXAMPLES.by("a later optimizer step of the same tree")
def later_step(example: Example) -> Found:
    given = example.values
    result = computed(
        EDGES,
        ["loss", "gradient.logprob"],
        members=answers([1] * len(given["d"]), [0.0] * len(given["d"])),
        columns={"step": {"given": given["A"].tolist()}},
        policy={"logprob": (given["d"] - 1.0).tolist()},
    )
    return {"loss": result["loss"], "has_gradient": result["gradient.logprob"] != 0}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
