"""Worked examples of the paper of areal, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import _core, recipes
from agentrl_core.collect.prefetch import allowed
from agentrl_core.collect.run_state import RunState
from agentrl_core.loss import Tokens

EXAMPLES = PaperExamples("areal")
LOSSES = given_advantages(recipes.AREAL)
CLIP = recipes.AREAL.loss.clip


@EXAMPLES.by("admission at version 3")
def admission(example: Example) -> Found:
    given = example.values
    recipe = recipes.AREAL.replace(hooks=replace(recipes.AREAL.hooks, at_most=int(given["eta"])))
    versions = given["version"].astype(int).tolist()
    last = np.array([each + allowed(recipe, 99, state(each)) for each in versions])
    return {"may_start": (22 - 1) // given["B"] <= last, "largest_number": (last + 1) * given["B"]}


def state(version: int) -> RunState:
    """Return the state of a run after a number of closed iterations."""
    return RunState(version, {}, {}, {}, None, _core.Batch.empty(), 0)


def test_mathematics_runs_eight_iterations_ahead() -> None:
    assert allowed(recipes.AREAL, 99, state(0)) == 8


@EXAMPLES.by("three policies, four tokens")
def three_policies(example: Example) -> Found:
    given = example.values
    own_tokens = given["mask"] > 0
    behave, prox, theta, values = (given[name][own_tokens] for name in ("behave", "prox", "theta", "A"))

    def compute(**clip: Any) -> Found:
        changed = given_advantages(recipes.AREAL, clip=replace(CLIP, **clip))
        return dict(single_tokens(changed, behave, theta, values, proximal_logprob=prox))

    unclipped = compute(center_at_most=5.0, low=1.0, high=99.0)
    return {
        "loss_without_filter": compute()["loss"],
        "loss_with_filter": compute(center_at_most=5.0)["loss"],
        "kept_tokens": np.insert(unclipped["gradient.logprob"] != 0, 2, False),
        "loss_of_ppo_for_comparison": compute(center="one")["loss"],
    }


@EXAMPLES.by("the second of four optimizer steps clips around the same proximal policy")
def second_step(example: Example) -> Found:
    assert recipes.AREAL.minibatches == 4
    behave, prox, first, second, advantages = (
        example.values[name] for name in ("behave", "prox", "first", "second", "A")
    )
    moved = single_tokens(LOSSES, behave, second, advantages, proximal_logprob=prox)
    return {
        "first_loss": single_tokens(LOSSES, behave, first, advantages, proximal_logprob=prox)["loss"],
        "second_loss": moved["loss"],
        "second_has_gradient": moved["gradient.logprob"] != 0,
    }


def by_lengths(lengths: list[int], rewards: list[float]) -> Value:
    """Return the advantage of each token of responses of these lengths."""
    members = answers(lengths, rewards)
    members = [{**member, "group": str(place)} for place, member in enumerate(members)]
    return computed(recipes.AREAL, ["token.advantage"], members=members)["token.advantage"]


@EXAMPLES.by("normalisation over tokens of unequal responses")
def normalised(example: Example) -> Found:
    rewards = example.values["r"].tolist()
    return {
        "advantage": by_lengths([3, 1, 2], rewards),
        "advantage_of_lengths_3_and_2": by_lengths([3, 2], rewards[:2]),
    }


@EXAMPLES.by("one rollout of three has no score (convention)")
def unscored(example: Example) -> Found:
    scores = example.values["s"] / 10 + 0.5  # the code's bias and scale, undone
    members = [*answers([2, 1], scores.tolist()), {"path": "1 | 3*4"}]
    advantages = computed(recipes.AREAL, ["token.advantage"], members=members)["token.advantage"]
    assert not advantages[3:].any()
    return {"advantage_of_each_response": np.array([advantages[0], advantages[2], np.nan])}


@EXAMPLES.by("approximate proximal policy")
def approximate(example: Example) -> Found:
    behave, theta, versions = (torch.from_numpy(example.values[name]) for name in ("behave", "theta", "v_token"))
    now = torch.full_like(behave, float(example.values["v_theta"]))
    streams = {"old_logprob": behave, "weight_kl": torch.ones_like(behave)}
    tokens = Tokens(theta, None, {**streams, "policy_version": versions, "iteration": now})
    bounds = replace(CLIP, center="interpolated")(tokens, tokens.log_ratio)
    weight = bounds.upper.numpy() / 1.2
    return {"weight": weight, "log_pi_prox": example.values["behave"] + np.log(weight)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
