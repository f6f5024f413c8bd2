"""Worked examples of the paper of safe, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.loss.value import soft_minimum
from agentrl_core.recipes.safe import PredictivePenalty

EXAMPLES = PaperExamples("safe")
CRITIC = recipes.SAFE.losses()[0].loss
PRICE = recipes.SAFE.losses()[1].loss.kl.coefficient
LOSSES = given_advantages(recipes.SAFE)


@EXAMPLES.by("soft-min, advantage and critic loss of a batch of three")
def batch(example: Example) -> Found:
    given = example.values
    heads = torch.from_numpy(np.stack([given["v1"], given["v2"]], axis=-1))
    old = soft_minimum(heads, CRITIC.temperature).numpy()
    members = [{**member, "group": str(place)} for place, member in enumerate(answers([1] * 3, given["R"].tolist()))]
    result = computed(
        recipes.SAFE.replace(epochs=1),
        ["step.advantage", "loss.critic"],
        members=members,
        columns={"step": {"value": old}, "token": {"old_value": old, "reference_logprob": [-1.0] * 3}},
        critic={"value": [[value, value] for value in given["V_new"].tolist()]},
    )
    return {"soft_min": old, "advantage": result["step.advantage"], "critic_loss": result["loss.critic"]}


@EXAMPLES.by("one response of three has no score (convention)")
def unscored(example: Example) -> Found:
    values = {"value": [*example.values["V_old"], 0.3]}
    members = answers([1] * 3, [*example.values["R"].tolist(), 0.0])
    del members[-1]["reward"]
    tokens = {"reference_logprob": [-1.0] * 3}
    result = computed(recipes.SAFE, ["step.advantage"], members=members, columns={"step": values, "token": tokens})
    assert result["step.advantage"][-1] == 0
    return {"advantage": np.append(result["step.advantage"][:-1], np.nan)}


def next_state(price: PredictivePenalty, state: Any, divergence: float, entropy: float, reward: float) -> Any:
    """Return the controller's state after a measurement."""
    return price.moved(state, {"reference_kl": divergence, "entropy": entropy, "reward": reward})


@EXAMPLES.by("three updates of the controller in warm-up")
def controller(example: Example) -> Found:
    states = [PRICE.initial_state()]
    for reward, divergence, entropy in zip(*(example.values[name].tolist() for name in ("r", "KL", "H")), strict=True):
        states.append(next_state(PRICE, states[-1], divergence, entropy, reward))
    return {
        "smoothed_kl": np.array([state["kl"] for state in states[1:]]),
        "coefficient": np.array([PRICE.value(state) for state in states[1:]]),
    }


@EXAMPLES.by("phases")
def phases(example: Example) -> Found:
    """After 100 rewards, from a state in which the controller's output is 0.05; the entropy's gate is 1."""
    thresholds = []
    for recent, older, spread in zip(
        *(example.values[name].tolist() for name in ("recent_mean", "older_mean", "recent_std")), strict=True
    ):
        rewards = [older] * 50 + [recent + spread, recent - spread] * 25
        state = {**PRICE.initial_state(), "kl": 10.0, "average": rewards[-1] - 0.02, "error": -1.0}
        new_state = next_state(PRICE, {**state, "rewards": rewards[:-1]}, 10.0, 1.9, rewards[-1])
        thresholds.append(10.0 - PRICE.value(new_state) / 0.2)
    return {"threshold": np.array(thresholds)}


@EXAMPLES.by("two epochs on one batch")
def epochs(example: Example) -> Found:
    """The critic's loss and the penalty are numbers of the example."""
    assert recipes.SAFE.epochs == 2
    given, results = example.values, {}
    for place, name in enumerate(("old", "second")):
        results[name] = computed(
            LOSSES,
            ["loss", "gradient.logprob"],
            members=answers([2, 1], given["A"][[0, 2]].tolist()),
            columns={"token": {"reference_logprob": given[name]}},
            policy={"logprob": given[name].tolist(), "entropy": [float(given["entropy"][place])] * 3},
        )
    others = 0.5 * given["critic"] + given["penalty"]
    return {
        "first_loss": results["old"]["loss"] + others[0],
        "second_loss": results["second"]["loss"] + others[1],
        "second_has_gradient": abs(results["second"]["gradient.logprob"]) > 1e-6,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
