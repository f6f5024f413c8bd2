"""Worked examples of the paper of fix_po, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small
from torch import Tensor

from agentrl_core import recipes
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component.controller import Controller
from agentrl_core.loss import Train
from agentrl_core.model.pack import PackOutput
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("fix_po")
RECIPE = recipes.FIX_PO
GAE, WHITENING = RECIPE.chain("advantage")
GIVEN = RECIPE.replace(
    advantage=GroupRelative(column="given", level="token", center="none", scale="none"),
    loss=RECIPE.chain("loss")[1],
    hooks=None,
    epochs=1,
    minibatches=1,
)
"""The policy's loss, with the advantages of an example."""
STATES = 10
"""Samples of a state: each action as often as ten times its old probability."""


def multiplier() -> Controller:
    """Return the coefficient of the policy's loss, from which that of the fix-up is derived."""
    results = [each for place, each in RECIPE.controllers.items() if place.startswith("loss")]
    assert results[0] == results[1]
    assert results[0].every == "step"
    return results[0]


def sampled(recipe: Recipe, old: Value, new: Value, advantage_values: Value, **more: Any) -> Any:
    """Return loss and gradients of states with two actions; the first action has these advantages.

    A state is sampled ten times, each action in its old proportion, so that estimates are exact.
    """
    counts = np.rint(old * STATES).astype(int)
    rows = [(state, action) for state, each in enumerate(counts) for action in (0, 1) for _ in range(each[action])]
    shares = [
        float(advantage_values[state] * STATES / counts[state][0]) if action == 0 else 0.0 for state, action in rows
    ]
    return computed(
        recipe,
        ["loss"],
        members=[
            {**answer, "logprobs": [float(np.log(old[row]))]}
            for answer, row in zip(answers([1] * len(rows), [0.0] * len(rows)), rows, strict=True)
        ],
        columns={"token": {"given": shares}},
        policy={"logprob": [float(np.log(new[row])) for row in rows], **more},
    )


@EXAMPLES.by("primary loss of three states")
def primary(example: Example) -> Found:
    given = example.values
    states = list(zip(given["old"], given["new"], given["A"], strict=True))
    nothing = np.zeros(1)
    divergences = [sampled(GIVEN, old[None], new[None], nothing)["loss"] for old, new, _ in states]
    free = [sampled(GIVEN, old[None], new[None], np.ones(1))["loss"] for old, new, _ in states]
    return {
        "ratio": np.ravel(divergences) - np.ravel(free),
        "KL": np.ravel(divergences),
        "loss": sampled(GIVEN, given["old"], given["new"], given["A"])["loss"],
    }


@EXAMPLES.by("value and entropy terms")
def other_terms(example: Example) -> Found:
    given = example.values
    even = np.full((2, 2), 0.5)
    entropies = [float(given["H"])] * (2 * STATES)
    result = computed(
        RECIPE.replace(epochs=1, minibatches=1),
        ["loss.critic"],
        members=answers([1, 1], given["R"].tolist()),
        columns={"token": {"value": given["V"].tolist()}},
        critic={"value": given["V"].tolist()},
    )
    return {
        "value_term": result["loss.critic"],
        "entropy_term": sampled(GIVEN, even, even, np.zeros(2), entropy=entropies)["loss"],
    }


@EXAMPLES.by("two Adam steps of the coefficient")
def coefficient(example: Example) -> Found:
    price = multiplier()
    state = price.initial_state()
    results = [
        price.value(state := price.moved(state, {"max_kl": target})) for target in example.values["max_KL"].tolist()
    ]
    return {"first": results[0], "second": results[1]}


@EXAMPLES.by("the coefficient never falls below zero")
def least(example: Example) -> Found:
    price = multiplier()
    state = {**price.initial_state(), "value": float(example.values["beta"])}
    return {"kept": price.value(price.moved(state, {"max_kl": 0.0}))}


class Scripted(torch.nn.Module):
    """A policy whose one-token rollouts drift from the old one by a table, pass after pass."""

    def __init__(self, *passes: Value) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(()))
        self._steps = [np.zeros(2)] * 2 + [step for each in passes for step in each]

    def logprobs(self, old: Tensor) -> Tensor:
        """Return log-probs with drift x > 0 for which exp(x) - x - 1 is as in the table, by Newton's method."""
        targets = torch.tensor(self._steps.pop(0))
        away = torch.ones_like(targets)
        for _ in range(60):
            away = away - (away.expm1() - away - targets) / away.expm1().clamp(min=1e-9)
        return old + away + self.shift


@EXAMPLES.by("which mini-batches are fixed")
def fixed(example: Example) -> Found:
    passes = [example.values[f"pass_{number}"] for number in (1, 2, 3)]
    policy = Scripted(*passes)
    batch = small([(0, [1]) for _ in range(4)], draw_score=[1.0, 0.0, 0.0, 1.0], token_value=[0.0] * 4)
    _, first, stage = RECIPE.chain("loss")
    assert isinstance(stage, Train)
    recipe = RECIPE.replace(epochs=1, minibatches=2, loss=(first, replace(stage, minibatches=2)))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    stepped = []
    for update in recipe.updates(recipe.credit(batch), models={"policy": policy}):
        for pack in update.pack(max_tokens=100, layout="sequence"):
            logprob = policy.logprobs(pack.streams.old_logprob.double())
            update.loss(PackOutput(logprob, torch.zeros_like(logprob)), pack).backward()
        stepped.append(update.step(optimizer))
    assert stepped[:2] == [True, True], "no step of the policy's loss is left out"
    steps = np.array(stepped[2:]).reshape(-1, 2)
    assert len(steps) == len(passes), "a pass without a violation is the last one"
    return {f"pass_{number}": each for number, each in enumerate(steps, 1)} | {"fix_up_steps": steps.sum()}


@EXAMPLES.by("gradient of a fix-up step on a logit")
def fix_up(example: Example) -> Found:
    given = {name: float(value) for name, value in example.values.items()}
    stage = RECIPE.chain("loss")[2]
    assert isinstance(stage, Train)
    old, new = (np.array([given[name], 1 - given[name]]) for name in ("old", "new"))
    count = round(STATES * old[0])
    rows = [0] * count + [1] * (STATES - count)
    members = [{**answers([1], [0.0])[0], "logprobs": [float(np.log(old[row]))]} for row in rows]

    def compute(beta: float) -> Any:
        recipe = RECIPE.replace(loss=replace(stage, minibatches=1, loss=replace(stage.loss, coefficient=beta)))
        policy = {"logprob": [float(np.log(new[row])) for row in rows]}
        return computed(recipe, ["loss"], members=members, stage="fixup", policy=policy)

    slopes = np.array([1 - new[0], -new[0]])[rows]  # gradient of the log-probs by the logit
    return {
        "KL": compute(1.0)["loss"],
        "gradient": compute(given["beta"])["gradient.logprob"] @ slopes,
    }


@EXAMPLES.by("advantages of mini-batches of five and of two")
def advantages(example: Example) -> Found:
    return {f"advantage_{name.lower()}": whitened(example.values[name]) for name in "AB"}


def whitened(advantage_values: Value) -> Value:
    scores = np.where(np.isnan(advantage_values), np.nan, 1.0)
    batch = small(
        [(0, [1])] * len(advantage_values), draw_score=scores, token_advantage=np.nan_to_num(advantage_values)
    )
    token_advantages = np.array(column(WHITENING(batch), level="token"))
    assert not token_advantages[np.isnan(advantage_values)].any()
    return np.where(np.isnan(advantage_values), np.nan, token_advantages)


@EXAMPLES.by("lambda-returns of an episode of three steps")
def lambda_returns(example: Example) -> Found:
    given = example.values
    assert isinstance(GAE, Gae)
    result = computed(
        RECIPE.replace(advantage=GAE),
        ["token.advantage", "token.return"],
        members=[{"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": float(given["r"][-1])}],
        columns={"token": {"value": given["V"].tolist()}},
    )
    return {"advantage": result["token.advantage"], "value_target": result["token.return"]}


@EXAMPLES.by("a state without a reward (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": whitened(np.append(example.values["A"], np.nan))}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
