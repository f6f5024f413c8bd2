"""Worked examples of the paper of ppo_ewma, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.loss import KL
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("ppo_ewma")
CommonExamples(EXAMPLES, recipes.PPO_EWMA)
LOSSES = given_advantages(recipes.PPO_EWMA)
GAE, WHITENING = recipes.PPO_EWMA.chain("advantage")


def proximity_loss(recipe: Recipe, behaviour: Value, proximal: Value, new: Value, advantages: Value) -> float:
    """Return the loss of tokens with a proximity term to a third policy."""
    members = [
        {**member, "logprobs": [logprob]}
        for member, logprob in zip(answers([1] * len(advantages), advantages.tolist()), behaviour.tolist(), strict=True)
    ]
    columns = {"token": {"proximal_logprob": proximal.tolist()}}
    result = computed(recipe, ["loss"], members=members, columns=columns, policy={"logprob": new.tolist()})
    return float(result["loss"][0])


@EXAMPLES.by("three policies")
def three(example: Example) -> Found:
    return {"loss": proximity_loss(LOSSES, *(example.values[name] for name in ("lp_b", "lp_p", "lp", "A")))}


@EXAMPLES.by("proximal = behaviour is PPO")
def coupled(example: Example) -> Found:
    old, new, advantages = (example.values[name] for name in ("old", "lp", "A"))
    ppo = single_tokens(given_advantages(recipes.PPO), old, new, advantages)["loss"]
    return {"decoupled": proximity_loss(LOSSES, old, old, new, advantages), "ppo": ppo}


@EXAMPLES.by("the KL form")
def penalty(example: Example) -> Found:
    recipe = given_advantages(recipes.PPO_EWMA, clip=None, drift=KL(1.0, "k2", column="proximal_logprob"))
    return {"loss": proximity_loss(recipe, *(example.values[name] for name in ("lp_b", "lp_p", "lp", "A")))}


@EXAMPLES.by("the second minibatch meets another proximal policy than the first")
def second(example: Example) -> Found:
    given = example.values
    behaviour, one = np.full(1, float(given["lp_b"])), np.full(1, float(given["A"]))
    pairs = [(given["lp_p"][[at]], given["lp"][[at]]) for at in (0, 1)]
    return {
        "decoupled": [proximity_loss(LOSSES, behaviour, proximal, new, one) for proximal, new in pairs],
        "coupled": [proximity_loss(LOSSES, behaviour, behaviour, new, one) for _, new in pairs],
    }


@EXAMPLES.by("GAE over two episodes of one environment")
def gae(example: Example) -> Found:
    result = computed(
        recipes.PPO_EWMA.replace(advantage=GAE),
        ["token.advantage", "token.return"],
        members=answers([2, 1], [1, 0]),
        columns={"token": {"value": example.values["v"].tolist()}},
    )
    return {"advantage": result["token.advantage"], "value_target": result["token.return"]}


@EXAMPLES.by("the batch's own moments")
def moments(example: Example) -> Found:
    result = computed(
        recipes.PPO_EWMA.replace(advantage=replace(WHITENING, column="given")),
        ["token.advantage"],
        members=answers([4], [0]),
        columns={"token": {"given": example.values["adv"].tolist()}},
    )
    return {"advantage": result["token.advantage"]}


@EXAMPLES.by("the average moves with the policy's steps alone")
def average(example: Example) -> Found:
    given = example.values
    models = {name: torch.nn.Linear(1, 1, bias=False).double() for name in ("policy", "proximal", "critic")}
    for model in models.values():
        model.weight.data.fill_(float(given["start"]))
    states: dict[str, Any] = {}
    results, thetas = [], iter(given["theta"].tolist())
    for minibatches in (2, 1):
        recipe = recipes.PPO_EWMA.replace(minibatches=minibatches)
        batch = small([(0, [1]), (0, [1])], draw_score=[1.0, 0.0])
        batch = batch.with_columns("token", value=[0.0, 0.0], proximal_logprob=[-1.0, -1.0])
        batch = recipe.credit(recipe.with_states(batch, states))
        updates, after = recipe.updates(batch, models=models), False
        for update in updates:
            results += [models["proximal"].weight.item()] if after else []
            if after := update.model == "policy":
                models["policy"].weight.data.fill_(next(thetas))
            update.step(torch.optim.SGD(models[update.model].parameters(), lr=0.0))
        recipe.run_hooks(updates, **models)
        results.append(models["proximal"].weight.item())
        metrics = {"updates": minibatches, "critic.updates": minibatches}
        states = recipe.next_states(states, IterationRecord.of(batch, metrics))
    return {"average": np.array(results)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
