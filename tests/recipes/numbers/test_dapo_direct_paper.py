"""Worked examples of the paper of dapo_direct, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Regression, Train
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("dapo_direct")


def recipe_with_beta(beta: Value, recipe: Recipe = recipes.DAPO_DIRECT) -> Recipe:
    """Return the recipe with the coefficient of an example; the paper does not give its own."""
    fit, critic = recipes.DAPO_DIRECT.chain("loss")
    assert isinstance(fit, Train)
    assert isinstance(fit.loss, Regression)
    return recipe.replace(loss=(replace(fit, loss=replace(fit.loss, beta=float(beta))), critic))


GIVEN = recipes.DAPO_DIRECT.replace(advantage=GroupRelative(column="given", level="step", center="none", scale="none"))
"""The recipe with the advantages of an example."""


def loss_and_gradient(beta: Value, ratios: Sequence[Value], advantages: Value) -> Mapping[str, Value]:
    """Return loss, and its gradient by log-prob, of one-step answers with these log-ratios of their tokens."""
    return computed(
        recipe_with_beta(beta, GIVEN),
        ["loss", "gradient.logprob"],
        members=answers([len(each) for each in ratios], [1.0] * len(ratios)),
        columns={"step": {"given": advantages.tolist()}},
        policy={"logprob": (np.concatenate(ratios) - 1.0).tolist()},
    )


def last_steps(before: Value, outcomes: Value, beta: float = 0.1) -> Mapping[str, Value]:
    """Return advantages and loss of one-step answers; an unknown outcome is `nan`."""
    members = [
        {"path": "1 | 3"} if np.isnan(outcome) else {"path": "1 | 3", "reward": outcome}
        for outcome in outcomes.tolist()
    ]
    columns = {"step": {"value": before.tolist()}}
    return computed(recipe_with_beta(np.array(beta)), ["step.advantage", "loss"], members=members, columns=columns)


@EXAMPLES.by("an answer of three steps that fails")
def three_steps(example: Example) -> Found:
    *before, outcome = example.values["V"].tolist()
    member = {"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": outcome}
    columns = {"step": {"value": before}}
    advantages = computed(recipes.DAPO_DIRECT, ["step.advantage"], members=[member], columns=columns)["step.advantage"]
    return {"advantage": advantages, "sum": advantages.sum()}


@EXAMPLES.by("loss of steps of three and of one tokens, data of another policy")
def sums(example: Example) -> Found:
    given = example.values
    result = loss_and_gradient(given["beta"], [given["d_a"], given["d_b"]], given["A"])
    slopes = result["gradient.logprob"]
    np.testing.assert_allclose(slopes[:3], slopes[0])
    return {
        "error": 2 * slopes[[0, 3]],
        "loss": result["loss"],
        "slope_of_each_token_of_a": slopes[:1],
        "slope_of_the_token_of_b": slopes[3:],
    }


@EXAMPLES.by("three actions of one state and one of another, centred or not")
def actions(example: Example) -> Found:
    given = example.values
    outcomes = np.append(given["next"], given["single"])
    before = np.append(np.full(len(given["next"]), given["V"]), given["V2"])
    result = last_steps(before, outcomes, beta=float(given["beta"]))
    advantages = result["step.advantage"]
    return {"advantage": advantages[:3], "advantage_single": advantages[3:], "loss": result["loss"]}


@EXAMPLES.by("two optimizer steps: the target stays, also for A = 0")
def steps(example: Example) -> Found:
    given, results = example.values, {}
    for number, name in enumerate(("first", "second"), start=1):
        step = loss_and_gradient(given["beta"], np.split(given[name], 2), given["A"])
        results |= {f"loss_{number}": step["loss"], f"slope_{number}": step["gradient.logprob"]}
    return results


@EXAMPLES.by("critic")
def critic(example: Example) -> Found:
    given = example.values
    return {
        "critic_loss": computed(
            recipes.DAPO_DIRECT,
            ["loss"],
            stage="warm_start",
            members=answers([1] * len(given["V"]), [1.0] * len(given["V"])),
            columns={"step": {"return": given["rate"].tolist()}},
            critic={"value": np.log(given["V"] / (1 - given["V"])).tolist()},
        )["loss"]
    }


@EXAMPLES.by("the reference of the second iteration is the trained policy")
def next_iteration(example: Example) -> Found:
    """The sampling policy is the reference, so the reference moves with the iterations."""
    given, results = example.values, {}
    for number in (1, 2):
        away = np.atleast_1d(given["logp"] - given[f"ref_{number}"])
        results[f"error_{number}"] = loss_and_gradient(given["beta"], [away], np.atleast_1d(given[f"A_{number}"]))[
            "gradient.logprob"
        ]
    return results


@EXAMPLES.by("an answer of four has no outcome (convention)")
def unscored(example: Example) -> Found:
    result = last_steps(np.append(example.values["V"], 0.5), np.append(example.values["outcome"], np.nan))
    assert result["step.advantage"][3] == 0.0
    return {"advantage_of_the_last_step": np.where([False] * 3 + [True], np.nan, result["step.advantage"])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
