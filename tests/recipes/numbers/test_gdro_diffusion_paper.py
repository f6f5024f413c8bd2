"""Worked examples of the paper of gdro_diffusion, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.loss import ListMatch

EXAMPLES = PaperExamples("gdro_diffusion")
(LOSS,) = recipes.GDRO_DIFFUSION.chain("loss")
assert isinstance(LOSS, ListMatch)


def loss_and_derivative(
    implicit: Value, rewards: Value, *, direction: Literal["forward", "ranked"] | None = None, tau: float = 0.05
) -> Mapping[str, Value]:
    """Return the loss of a group of answers with these implicit rewards, and its derivative by them."""
    recipe = recipes.GDRO_DIFFUSION.replace(loss=replace(LOSS, direction=direction or LOSS.direction, temperature=tau))
    members = answers([1] * len(rewards), rewards.tolist())
    for member in members:
        if np.isnan(member["reward"]):
            del member["reward"]
    result = computed(
        recipe,
        ["loss", "gradient.logprob"],
        members=members,
        columns={"token": {"reference_logprob": [-1.0] * len(rewards)}},
        policy={"logprob": (implicit / LOSS.beta - 1.0).tolist()},
    )
    return {"loss": result["loss"], "derivative": result["gradient.logprob"] / LOSS.beta}


@EXAMPLES.by("group of three")
def three(example: Example) -> Found:
    """Errors of a velocity take the place of log-probs: implicit rewards are beta times the policy's gain."""
    given = example.values
    first_position = loss_and_derivative(given["s"], given["r"], direction="forward", tau=float(given["tau"]))
    probability = np.exp(given["s"]) / np.exp(given["s"]).sum()
    both_positions = loss_and_derivative(given["s"], given["r"], tau=float(given["tau"]))
    return {
        "target": probability - first_position["derivative"],
        "top_1": first_position["loss"],
        "second_position": both_positions["loss"] - first_position["loss"],
        "loss": both_positions["loss"],
    }


@EXAMPLES.by("derivative by implicit rewards")
def derivative(example: Example) -> Found:
    """The targets are given: their logarithms, the best first, are rewards of temperature 1."""
    given = example.values
    rewards = np.log(np.maximum(given["q"], 1e-30))
    result = loss_and_derivative(given["s"], rewards, tau=1.0)["derivative"]
    return {"derivative": result, "sum_of_group": result.sum()}


@EXAMPLES.by("two items, tau near 0")
def two(example: Example) -> Found:
    pairs = zip(example.values["s_first"], example.values["s_second"], strict=True)
    losses = [loss_and_derivative(np.array(pair), np.array([1.0, 0.0]))["loss"] for pair in pairs]
    return {"rank_loss": np.concatenate(losses)}


@EXAMPLES.by("groups of three and of two")
def uneven(example: Example) -> Found:
    given = example.values
    sets = [(given["s"], given["r"]), (given["t"], given["r"][:2])]
    members = [
        {"group": str(place), "path": "1 | 3", "reward": reward}
        for place, (_, rewards) in enumerate(sets)
        for reward in rewards.tolist()
    ]
    result = computed(
        recipes.GDRO_DIFFUSION.replace(loss=replace(LOSS, temperature=1e-3)),
        ["loss"],
        members=members,
        columns={"token": {"reference_logprob": [-1.0] * len(members)}},
        policy={"logprob": (np.concatenate([implicit for implicit, _ in sets]) / LOSS.beta - 1.0).tolist()},
    )
    alone = [loss_and_derivative(*each, tau=1e-3)["loss"] for each in sets]
    return {"loss_a": alone[0], "loss_b": alone[1], "loss": result["loss"]}


@EXAMPLES.by("an item without a reward (convention)")
def unscored(example: Example) -> Found:
    given = example.values
    result = loss_and_derivative(
        np.append(given["s"], 2.0), np.append(given["r"], np.nan), direction="forward", tau=float(given["tau"])
    )
    assert result["derivative"][2] == 0.0
    probability = np.exp(given["s"]) / np.exp(given["s"]).sum()
    return {"top_1": result["loss"], "target": np.append(probability - result["derivative"][:2], np.nan)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
