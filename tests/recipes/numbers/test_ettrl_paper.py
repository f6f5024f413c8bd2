"""Worked examples of the paper of ettrl, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from riddles import RIGHT, solve

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.engine import Request
from agentrl_core.engine.scripted import ScriptedReply

EXAMPLES = PaperExamples("ettrl")
RECIPE = recipes.ETTRL
PAID = plain_reward(RECIPE)
"""The recipe with given rewards."""


def members(rewards: Sequence[float], entropies: Sequence[float]) -> list[dict[str, Any]]:
    """Return draws of one token."""
    return [
        {**member, "entropies": [entropy]}
        for member, entropy in zip(answers([1] * len(rewards), rewards), entropies, strict=True)
    ]


def reshaped(rewards: Value, entropies: Value, weight: Any = RECIPE.weight) -> tuple[Value, Value, Value]:
    """Return advantages before and after reshaping, and the factors; an unscored draw has none (nan)."""
    group = members(np.ravel(rewards).tolist(), entropies.tolist())
    names = ["draw.score", "draw.advantage", "draw.weight"]
    result = computed(PAID.replace(weight=weight), names, members=group)
    before = np.where(np.isnan(result["draw.score"]), np.nan, result["draw.advantage"])
    return before, before * result["draw.weight"], result["draw.weight"]


@EXAMPLES.by("votes with a tie and an unreadable answer")
def votes(example: Example) -> Found:
    read = [*example.values["answers"].tolist(), -1.0]
    group = [
        {**member, "facts": {"answer_cluster": f"{answer:g}", "answer_parsed": float(answer >= 0)}}
        for member, answer in zip(members([0.0] * len(read), [1.0] * len(read)), read, strict=True)
    ]
    rewards = computed(RECIPE, ["draw.score"], members=group)["draw.score"]
    [label] = set(np.array(read)[rewards > 0].tolist())
    return {"pseudo_label": label, "reward": rewards}


@EXAMPLES.by("leaves of the tree")
def leaves(example: Example) -> Found:
    entropies, prefix_lengths = example.values["H"].tolist(), []

    def speak(context: str, request: Request) -> ScriptedReply | str:
        del request
        reply = context.rpartition("assistant\n")[2]
        if reply:
            prefix_lengths.append(len(reply))
            return RIGHT[len(reply) :]
        count = len(RIGHT) + 1
        return ScriptedReply(RIGHT, [-1.0] * count, [*entropies, *[0.0] * (count - len(entropies))])

    program = replace(RECIPE.rollout, positions=int(example.values["N"]))
    assert program.copies == example.values["B"]
    size = int(example.values["M"]) * (1 + program.positions * program.copies)
    run = solve(program, speak, group_size=size)
    places = sorted(set(prefix_lengths))
    return {
        "fork": np.isin(np.arange(len(entropies)), places),
        "leaves": len(run.drawn),
        "tokens_kept_at_the_forks": np.array(places),
    }


@EXAMPLES.by("the tree of the experiments beside 64 answers")
def experiments(example: Example) -> Found:
    program = RECIPE.rollout
    assert (program.positions, program.copies) == (example.values["N"], example.values["B"])
    return {"leaves": program.final_group_size(int(example.values["size"]))}


@EXAMPLES.by("both ways to reshape, groups of four and of three")
def relative_entropy(example: Example) -> Found:
    given = example.values
    before, after, factor = reshaped(given["r"], given["H"])
    _, second, factor_second = reshaped(given["s"], given["G"])
    bounded = reshaped(given["r"], given["H"], replace(RECIPE.weight, at_least=0.0))[1]
    return {
        "advantage": before,
        "adv_clip": advantages(PAID.replace(advantage=GroupRelative(at_most=1.2), weight=None), given["r"])[0],
        "factor": factor,
        "adv_res": after,
        "adv_res_clamped_at_0": bounded,
        "factor_second": factor_second,
        "adv_res_second": second,
    }


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    return {
        "factor": reshaped(example.values["r"], example.values["H"])[2],
        "centred_reward": advantages(PAID.replace(weight=None), example.values["r"])[0],
    }


@EXAMPLES.by("one response of four has no score (convention)")
def unscored(example: Example) -> Found:
    rewards, entropies = np.append(example.values["r"], np.nan), np.append(example.values["H"], 5.0)
    return {"adv_res": reshaped(rewards, entropies)[1]}


@EXAMPLES.by("the factor stays over two optimizer steps")
def later_step(example: Example) -> Found:
    given = example.values
    entropies = 2.0 - given["Y"]  # their mean is 1
    recipe = given_advantages(RECIPE).replace(weight=RECIPE.weight)
    losses, names = [], ["draw.advantage", "draw.weight", "loss"]
    for step in ("old", "second"):
        policy = {"logprob": given[step].tolist()}
        result = computed(recipe, names, members=members(given["A"].tolist(), entropies.tolist()), policy=policy)
        losses.append(result["loss"])
    reshaped_by = result["draw.advantage"] * result["draw.weight"]
    return {"adv_res": reshaped_by, "first_loss": losses[0], "second_loss": losses[1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
