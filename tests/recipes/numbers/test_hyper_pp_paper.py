"""Worked examples of the paper of hyper_pp, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from arithmetic import Value as Numbers
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.loss import Train, Value
from agentrl_core.loss.value import expected_value

EXAMPLES = PaperExamples("hyper_pp")
GAE, NORMALISED = recipes.HYPER_PP.chain("advantage")
CRITIC, _ = recipes.HYPER_PP.chain("loss")
assert isinstance(CRITIC, Train)
assert isinstance(CRITIC.loss, Value)
BEFORE = recipes.HYPER_PP.replace(advantage=GAE, epochs=1, minibatches=1)
"""The recipe without the normalisation of advantages, in one step."""


def value_of(logits: Numbers, centers: Numbers) -> float:
    return float(expected_value(torch.from_numpy(logits)[None], float(centers[0]), float(centers[-1])))


def normalised(advantages: Numbers) -> Numbers:
    recipe = recipes.HYPER_PP.replace(advantage=replace(NORMALISED, column="given"))
    members = answers([1] * len(advantages), [0] * len(advantages))
    columns = {"token": {"given": advantages.tolist()}}
    return computed(recipe, ["token.advantage"], members=members, columns=columns)["token.advantage"]


def credit(scores: Sequence[float], values: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Return advantages and returns of tokens of rollouts that are paid at their end."""
    result = computed(
        BEFORE,
        ["token.advantage", "token.return"],
        members=answers([len(each) for each in values], scores),
        columns={"token": {"value": np.concatenate(values).tolist()}},
    )
    return result["token.advantage"], result["token.return"]


@EXAMPLES.by("targets over four bins, inside and above the range")
def bins(example: Example) -> Found:
    """The gradient by the logits is the softmax minus the target."""
    given = example.values
    logits, centers = given["logits"], given["centers"]
    fewer = replace(CRITIC, loss=replace(CRITIC.loss, low=float(centers[0]), high=float(centers[-1])))
    results = {}
    for score in (3.0, 14.0):
        step = computed(
            BEFORE.replace(loss=fewer),
            ["loss", "gradient.critic.value_logits"],
            members=answers([1], [score]),
            columns={"token": {"value": [0.0]}},
            critic={"value_logits": [logits.tolist()]},
        )
        softmax = np.exp(logits) / np.exp(logits).sum()
        results[f"loss_{score:.0f}"] = step["loss"]
        results[f"target_{score:.0f}"] = softmax - step["gradient.critic.value_logits"][0]
    return {**results, "value": value_of(logits, centers)}


@EXAMPLES.by("advantages across the end of an episode that failed")
def across(example: Example) -> Found:
    """Rollouts end by themselves; the value after the second one's last step is added to its reward."""
    given = example.values
    assert (GAE.gamma, GAE.lam) == (given["gamma"], given["lam"])
    after = float(given["r"][3] + given["gamma"] * given["V_next"])
    advantages, returns = credit([float(given["r"][1]), after], np.split(given["V"], 2))
    return {"advantage": advantages, "return": returns}


@EXAMPLES.by("policy loss after a step, with the whole")
def total_loss(example: Example) -> Found:
    """The critic's loss has its own optimizer; it is added here as in the code."""
    given = example.values
    old, advantages = np.full(4, -1.0), normalised(given["A"])
    new = old + np.log(given["rho"])
    losses = given_advantages(recipes.HYPER_PP)
    alone = [single_tokens(losses, old[[at]], new[[at]], advantages[[at]])["loss"] for at in range(4)]
    entropies = {"entropy": [float(given["entropy"])] * 4}
    policy = single_tokens(losses, old, new, advantages)["loss"]
    loss = single_tokens(losses, old, new, advantages, outputs=entropies)["loss"] + 0.5 * given["value_loss"]
    return {"normalised": advantages, "losses": np.concatenate(alone), "policy_loss": policy, "loss": loss}


@EXAMPLES.by("a mini-batch of one has no deviation")
def alone(example: Example) -> Found:
    return {"normalised": normalised(np.ravel(example.values["A"]))}


@EXAMPLES.by("next batch: stored values are expectations of the new distribution")
def next_batch(example: Example) -> Found:
    given = example.values
    values = [value_of(given[name], given["centers"]) for name in ("logits", "next_logits")]
    return {"advantage": credit([float(given["r"])] * 2, [np.array([value]) for value in values])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_bins_from_minus_ten_to_ten() -> None:
    low, high = CRITIC.loss.low, CRITIC.loss.high
    half = (high - low) / 50 / 2
    assert (low - half, high + half) == pytest.approx((-10.0, 10.0))
