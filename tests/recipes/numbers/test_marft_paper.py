"""Worked examples of the paper of marft, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("marft")
RAW = recipes.MARFT.chain("advantage")[0]
ONCE = recipes.MARFT.replace(
    loss=tuple(replace(training, epochs=1, minibatches=1) for training in recipes.MARFT.chain("loss")), hooks=None
)
"""The recipe with one optimizer step."""
WEIGHTED = ONCE.replace(advantage=GroupRelative(center="none", scale="none"))
"""The recipe with the advantages of an example as scores."""


@EXAMPLES.by("two agents in two steps")
def chained(example: Example) -> Found:
    rewards, values = example.values["r"].tolist(), example.values["V"]
    members = [
        {"path": "1 | 3 ~ 9 | 4", "agent": agent, "steps": [{"reward": rewards[agent]}, {"reward": rewards[agent + 2]}]}
        for agent in (0, 1)
    ]
    members[1] |= {"episode": 0}
    for member in members:
        member["reward"] = sum(step["reward"] for step in member["steps"])
    order = [0, 2, 1, 3]
    columns = {"step": {"value": values[order].tolist()}, "token": {"old_value": [0.0] * 4}}
    result = computed(
        recipes.MARFT.replace(advantage=RAW), ["step.advantage", "step.return"], members=members, columns=columns
    )
    return {"advantage": result["step.advantage"][order], "return": result["step.return"][order]}


def policy_loss(advantages: Value, lengths: list[int], **policy: Any) -> Mapping[str, Value]:
    """Return loss and gradient of actions of these lengths, each from its own episode."""
    count = sum(lengths)
    return computed(
        WEIGHTED,
        ["loss.policy", "gradient.logprob"],
        members=answers(lengths, np.ravel(advantages).tolist()),
        columns={"token": {"return": [0.0] * count, "old_value": [0.0] * count}},
        policy=policy,
        critic={"value": [0.0] * count},
    )


@EXAMPLES.by("tokens that another policy sampled")
def off_policy(example: Example) -> Found:
    result = policy_loss(example.values["A"], [1] * 4, logprob=example.values["new"].tolist())
    return {"loss": result["loss.policy"]}


@EXAMPLES.by("the joint ratio of an action")
def joint(example: Example) -> Found:
    new, old = example.values["new"], example.values["old"]
    entropy = [float(example.values["entropy"])] * 2
    result = policy_loss(example.values["A"], [2], logprob=(new - old - 1.0).tolist(), entropy=entropy)
    return {"ratio": -result["gradient.logprob"].sum() / 2, "loss": result["loss.policy"]}


@EXAMPLES.by("value losses")
def critic(example: Example) -> Found:
    values = example.values
    result = computed(
        WEIGHTED,
        ["loss.critic"],
        members=answers([1, 1], [0.0, 0.0]),
        columns={"token": {"return": values["R"].tolist(), "old_value": values["V_old"].tolist()}},
        critic={"value": values["V"].tolist()},
    )
    return {"loss_by_the_formula": result["loss.critic"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
