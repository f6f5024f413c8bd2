"""Worked examples of the paper of mdpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.mdpo import mirror

EXAMPLES = PaperExamples("mdpo")
GAE, WHITENING = recipes.MDPO.chain("advantage")
SCHEDULE: Any = given_advantages(recipes.MDPO).loss.drift.coefficient
HALF = int(SCHEDULE.iterations / 2) + 1
"""The recipe in the iteration at which t is 1/2."""
MIDDLE = given_advantages(recipes.MDPO).at(HALF)


def objective(old: Value, new: Value, advantage_values: Value, recipe: Recipe = MIDDLE) -> float:
    """Return the objective if tokens stand for all actions, each as often as the old policy takes it."""
    return -float(single_tokens(recipe, np.log(old), np.log(new), advantage_values)["loss"][0])


@EXAMPLES.by("advantages across an episode that failed")
def gae(example: Example) -> Found:
    given = example.values
    tokens = {"given": given["r"], "value": given["V"], "truncated": [0, 0, 1], "next_value": [0, 0, given["V_next"]]}
    first = replace(GAE, column="given", outcome="", at_truncation="bootstrap")
    iteration: dict[str, Any] = {
        "members": answers([2, 1], [0, 0]),
        "columns": {"token": {name: np.asarray(values, float).tolist() for name, values in tokens.items()}},
    }
    result = computed(recipes.MDPO.replace(advantage=first), ["token.advantage", "token.return"], **iteration)
    normalised = computed(recipes.MDPO.replace(advantage=(first, WHITENING)), ["token.advantage"], **iteration)
    return {
        "advantage": result["token.advantage"],
        "return": result["token.return"],
        "normalised": normalised["token.advantage"],
    }


@EXAMPLES.by("objective of two states at the first of the steps and after some")
def states(example: Example) -> Found:
    """Each of a state's two actions occurs once, as under its old policy; half of the tokens were not sampled."""
    given = example.values
    old, new = np.tile(given["pi_k"], 2), np.concatenate([given["first"], given["second"]])
    action_advantages = np.ravel([[2 * each, 0.0] for each in given["A"]])
    divergence = [-given["t"] * objective(old[:2], new[at : at + 2], np.zeros(2)) for at in (0, 2)]
    return {
        "start": objective(old, old, action_advantages),
        "divergence": np.array(divergence),
        "objective": objective(old, new, action_advantages),
    }


@EXAMPLES.by("best policy of one state has the closed form of mirror descent")
def best(example: Example) -> Found:
    given = example.values
    often = np.round(10 * given["pi_k"]).astype(int)
    old, new, gains = (np.repeat(each, often) for each in (given["pi_k"], example.expect["policy"], given["A"]))
    for moved in ([0.01, -0.01, 0.0], [0.0, 0.01, -0.01], [-0.01, 0.0, 0.01]):
        assert objective(old, np.repeat(example.expect["policy"] + moved, often), gains) < objective(old, new, gains)
    return {"objective": objective(old, new, gains), "objective_of_staying": objective(old, old, gains)}


@EXAMPLES.by("step size over the iterations")
def step_size(example: Example) -> Found:
    schedule = mirror(int(example.values["K"]))
    assert mirror(SCHEDULE.iterations) == SCHEDULE
    weights = np.array([schedule.at(int(k)) for k in example.values["k"]])
    return {"t": 1 / weights, "weight_of_kl": weights}


@EXAMPLES.by("value loss, clipped")
def values(example: Example) -> Found:
    """The objective is twice ours, which has halves of squares."""
    given = example.values
    result = computed(
        recipes.MDPO.replace(advantage=replace(GAE, column="given", outcome=""), loss=_one_step()),
        ["loss.critic"],
        number=HALF,
        members=answers([1] * 3, [0] * 3),
        columns={
            "token": {
                "value": given["V_k"].tolist(),
                "old_value": given["V_k"].tolist(),
                "given": given["R"].tolist(),
            }
        },
        critic={"value": given["V"].tolist()},
    )
    return {"loss": 2 * result["loss.critic"]}


def _one_step() -> Any:
    critic, policy = recipes.MDPO.chain("loss")
    return (replace(critic, epochs=1, minibatches=1), policy)


@EXAMPLES.by("a batch of one step has no deviation")
def alone(example: Example) -> Found:
    whitening = replace(WHITENING, column="score")
    return {"centred": advantages(recipes.MDPO.replace(advantage=whitening), example.values["A"])[0]}


def test_the_critic_and_the_policy_take_the_steps_of_the_code() -> None:
    batch_passes = {link.model: (link.epochs, link.minibatches) for link in recipes.MDPO.losses()}
    assert batch_passes == {"critic": (5, 16), "policy": (10, 1)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
