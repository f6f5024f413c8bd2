"""Worked examples of the paper of dart, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("dart")
WEIGHTED = recipes.DART.replace(
    advantage=GroupRelative(center="none", scale="none"), weight=recipes.DART.chain("weight")[1], replay=None
)
"""The recipe with the advantages of an example as scores, and with all steps."""


def columns(old: Value, new: Value) -> dict[str, Any]:
    """Return old log-probs, and a reference equal to the policy."""
    return {
        "columns": {
            "token": {"recomputed_logprob": np.ravel(old).tolist(), "reference_logprob": np.ravel(new).tolist()}
        },
        "policy": {"logprob": np.ravel(new).tolist()},
    }


@EXAMPLES.by("step rows of two trajectories of unequal length")
def steps(example: Example) -> Found:
    rewards = example.values["R"]
    members = [{"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": rewards[0]}, *answers([1], [rewards[3]])]
    members = [{**each, "entropies": [0.5] * count} for each, count in zip(members, (3, 1), strict=True)]
    result = computed(recipes.DART, ["step.advantage"], members=members, **columns([-1.0] * 4, [-1.0] * 4))
    return {"advantage": result["step.advantage"]}


@EXAMPLES.by("selected steps")
def selected(example: Example) -> Found:
    entropies = example.values["H"].tolist()
    members = [
        {**answer, "entropies": [entropy]}
        for answer, entropy in zip(answers([1] * 5, [1.0] * 5), entropies, strict=True)
    ]
    members[3] = {**answers([2], [1.0])[0], "entropies": [0.4, 1.4]}  # the mean is 0.9, unchanged
    result = computed(recipes.DART, ["token.weight"], members=members, **columns([-1.0] * 6, [-1.0] * 6))
    return {"keep": result["token.weight"][[0, 1, 2, 3, 5]]}


def gap_of(penalty: float) -> float:
    """Return the excess of the reference's log-prob at which the penalty k3 has this value."""
    low, high = 0.0, 5.0
    for _ in range(60):
        gap = (low + high) / 2
        low, high = (low, gap) if np.exp(gap) - gap - 1 > penalty else (gap, high)
    return low


@EXAMPLES.by("loss of the selected steps")
def selected_loss(example: Example) -> Found:
    given = example.values
    members = [
        {**answer, "entropies": [entropy]}
        for answer, entropy in zip(answers([1] * 5, given["R"].tolist()), given["H"].tolist(), strict=True)
    ]
    gaps = [gap_of(penalty) for penalty in given["kl"]]
    result = computed(
        recipes.DART,
        ["token.kl_weight", "loss"],
        members=members,
        columns={"token": {"recomputed_logprob": [-1.0] * 5, "reference_logprob": [gap - 1.0 for gap in gaps]}},
    )
    return {"loss": result["loss"], "keep": result["token.kl_weight"]}


@EXAMPLES.by("truncated weights")
def truncated(example: Example) -> Found:
    train, rollout = example.values["train"], example.values["rollout"]
    members = [
        {**answer, "logprobs": [logprob]}
        for answer, logprob in zip(answers([1] * 3, example.values["A"].tolist()), rollout, strict=True)
    ]
    result = computed(WEIGHTED, ["token.weight", "loss"], members=members, **columns(train, train))
    return {"weight": result["token.weight"], "loss": result["loss"]}


@EXAMPLES.by("a task of failures takes the newest success")
def replaced(example: Example) -> Found:
    inject = recipes.DART.replay
    assert inject.when.of(example.values["before"])
    assert inject.replaces == "first"
    rewards = [1.0, *example.values["before"][1:].tolist()]
    members = [{**answer, "entropies": [0.5]} for answer in answers([1] * 4, rewards)]
    result = computed(
        recipes.DART, ["draw.score", "step.advantage"], members=members, **columns([-1.0] * 4, [-1.0] * 4)
    )
    return {"rewards": result["draw.score"], "advantage": result["step.advantage"]}


@EXAMPLES.by("ratio of a sequence")
def ratio(example: Example) -> Found:
    away = example.values["d"][[0, 1, 3]] - 1.0
    member = {"path": "1 | 3*4", "reward": float(example.values["A"]), "trainable": [1, 1, 0, 1]}
    full = np.insert(away, 2, 4.0)
    result = computed(WEIGHTED, ["loss"], members=[member], **columns([-1.0] * 4, full))
    return {"objective": -result["loss"]}


@EXAMPLES.by("fewer rollouts of a solved task")
def reduced(example: Example) -> Found:
    rates = example.values["rate"]
    counts = recipes.DART.select.count.counts({}, {"estimate": rates}, total=8 * len(rates))
    return {"reduced": counts < 8}


def loss_of(example: Example, step: str) -> Mapping[str, Value]:
    members = answers([1] * 3, example.values["A"].tolist())
    numbers = columns(example.values["old"], example.values[step])
    return computed(WEIGHTED, ["loss", "gradient.logprob"], members=members, **numbers)


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    first, second = loss_of(example, "first"), loss_of(example, "second")
    return {
        "first_loss": first["loss"],
        "second_loss": second["loss"],
        "second_has_gradient": abs(second["gradient.logprob"]) > 1e-6,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
