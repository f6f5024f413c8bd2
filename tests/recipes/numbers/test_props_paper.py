"""Worked examples of the paper of props, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("props")
PROPS = recipes.PROPS.replace(epochs=1, minibatches=1)
GAE, _ = PROPS.chain("advantage")
CRITIC, _ = PROPS.chain("loss")


def turns(rewards: Sequence[float], values: Sequence[float], lengths: Sequence[int]) -> dict[str, Any]:
    """Return episodes with a number of one-token turns, with their rewards and values."""
    remaining_rewards = list(rewards)
    members = [
        {
            "group": str(place),
            "path": "1 " + " ~ 9 ".join(["| 3"] * length),
            "reward": 0.0,
            "steps": [{"reward": float(remaining_rewards.pop(0))} for _ in range(length)],
        }
        for place, length in enumerate(lengths)
    ]
    old = {"old_value": list(values), "recomputed_logprob": [-1.0] * len(values)}
    return {"members": members, "columns": {"step": {"value": list(values)}, "token": old}}


@EXAMPLES.by("advantages across an episode that failed")
def episode(example: Example) -> Found:
    """The third step continues to a fourth, whose reward is the value after the third."""
    given, after = example.values, float(example.values["V_next"])
    result = computed(
        PROPS.replace(advantage=GAE),
        ["step.advantage", "step.return"],
        **turns([*given["r"], after], [*given["V"], after], [2, 2]),
    )
    return {"advantage": result["step.advantage"][:3], "return": result["step.return"][:3]}


def normalised(advantages: Value) -> Value:
    """Return advantages of one-turn episodes that pay them, with a value of 0."""
    count = len(advantages)
    return computed(PROPS, ["step.advantage"], **turns(advantages.tolist(), [0.0] * count, [1] * count))[
        "step.advantage"
    ]


def policy_loss(sampled: Value, target: Value, now: Value, advantages: Value, **options: Any) -> Mapping[str, Value]:
    """Return loss and gradient of tokens, from log-probs of sampler, previous and current policy, and advantages."""
    members = answers([1] * len(advantages), advantages.tolist())
    for member, logprob in zip(members, sampled, strict=True):
        member["logprobs"] = [float(logprob)]
    return computed(
        given_advantages(PROPS, entropy=0.0, **options).replace(old_logprob=PROPS.old_logprob),
        ["loss", "gradient.logprob"],
        members=members,
        columns={"token": {"recomputed_logprob": target.tolist()}},
        policy={"logprob": now.tolist()},
    )


@EXAMPLES.by("data of the behaviour count as the target's")
def behaviour(example: Example) -> Found:
    given = example.values
    advantage, target = normalised(given["A"]), np.log(given["theta"])
    free = policy_loss(np.log(given["phi"]), target, target, advantage, clip=None)
    return {
        "ratio": -2 * free["gradient.logprob"] / advantage,
        "normalised": advantage,
        "loss": policy_loss(np.log(given["phi"]), target, target, advantage)["loss"],
    }


@EXAMPLES.by("target's loss after some steps")
def both_losses(example: Example) -> Found:
    """The critic is fitted to the returns of episodes of one turn, which pay them."""
    given, before = example.values, np.full(2, -1.0)
    batch = turns(given["R"].tolist(), given["V_old"].tolist(), [1, 1])
    critic = computed(PROPS.replace(loss=CRITIC), ["loss"], **batch, critic={"value": given["V"].tolist()})
    return {
        "policy": policy_loss(before, before, before + np.log(given["rho"]), given["N"])["loss"],
        "value": critic["loss"],
    }


@EXAMPLES.by("a mini-batch of one has no deviation")
def alone(example: Example) -> Found:
    return {"normalised": normalised(example.values["A"])}


def test_the_entropy_counts_as_in_the_whole_loss() -> None:
    signs, before = np.array([1.0, -1.0]), np.full(2, -1.0)
    loss = computed(
        given_advantages(PROPS),
        ["loss"],
        members=answers([1, 1], signs.tolist()),
        policy={"logprob": before.tolist(), "entropy": [0.6, 0.6]},
    )["loss"]
    np.testing.assert_allclose(loss, -0.006, rtol=1e-6)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
