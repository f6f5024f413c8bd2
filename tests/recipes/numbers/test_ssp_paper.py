"""Worked examples of the paper of ssp, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("ssp")
ONE_STEP = recipes.SSP.replace(minibatches=1)


def self_play(rewards: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """Return advantages of the solvers and of the proposer of each question."""
    proposer_rewards = [recipes.SSP.rollout.paid(float(np.mean(each))) for each in rewards]
    members = [
        {"group": f"{role} {place}", "path": "1 | 3", "reward": float(reward), "facts": {"proposer": role}}
        for place, each in enumerate(rewards)
        for role, reward in [*((0, one) for one in each), (1, proposer_rewards[place])]
    ]
    columns = {"token": {"reference_logprob": [-1.0] * len(members)}}
    advantages = computed(ONE_STEP, ["draw.advantage"], members=members, columns=columns)["draw.advantage"]
    questions = np.split(advantages, np.cumsum([len(each) + 1 for each in rewards])[:-1])
    return [each[:-1] for each in questions], [each[-1:] for each in questions]


@EXAMPLES.by("a valid question of five attempts and one of three")
def self_play_rewards(example: Example) -> Found:
    solvers, proposers = self_play([example.values["r_a"], example.values["r_b"]])
    return {"solver_a": solvers[0], "solver_b": solvers[1], "proposer_a": proposers[0], "proposer_b": proposers[1]}


@EXAMPLES.by("an unsolved and a fully solved question")
def self_play_extremes(example: Example) -> Found:
    solvers, proposers = self_play([np.atleast_1d(example.values[name]) for name in ("r_none", "r_all", "r_one")])
    return {
        "solver_none": solvers[0],
        "proposer_none": proposers[0],
        "solver_all": solvers[1],
        "proposer_all": proposers[1],
        "solver_single_attempt": solvers[2],
    }


@EXAMPLES.by("losses over tokens at ratio one")
def self_play_weights(example: Example) -> Found:
    # Two solvers, one of which fails, so that A is 0.5; and the proposer of another question.
    solver, proposer = (example.values[f"mask_{role}"].astype(int).tolist() for role in ("solver", "proposer"))
    gradient = computed(
        ONE_STEP,
        ["gradient.logprob"],
        members=[
            {"path": "1 | 3*5", "reward": 1.0, "trainable": solver, "facts": {"proposer": 0}},
            {"path": "1 | 3", "reward": 0.0, "facts": {"proposer": 0}},
            {"group": "1", "path": "1 | 3*4", "reward": 0.75, "trainable": proposer, "facts": {"proposer": 1}},
        ],
        columns={"token": {"reference_logprob": [-1.0] * 10}},
    )["gradient.logprob"]
    np.testing.assert_allclose(gradient[6:], [-0.75, 0.0, 0.0, -0.75])
    return {
        "solver_weight_of_a_token": -2 * gradient[:1],
        "proposer_weight_of_a_token": -gradient[6:7],
    }  # for two solvers


def policy_loss(old: Value, new: Value, advantages: Value) -> Mapping[str, Value]:
    """Return the loss of one-token solvers with these advantages, and its gradient."""
    recipe = ONE_STEP.replace(
        advantage=GroupRelative(center="none", scale="none"),
        loss=replace(recipes.SSP.loss, first=replace(recipes.SSP.loss.first, kl=None)),
    )
    members = [
        {"path": "1 | 3", "reward": reward, "logprobs": [logprob], "facts": {"proposer": 0}}
        for reward, logprob in zip(advantages.tolist(), old.tolist(), strict=True)
    ]
    return computed(recipe, ["loss", "gradient.logprob"], members=members, policy={"logprob": new.tolist()})


@EXAMPLES.by("tokens that another policy sampled")
def off_policy(example: Example) -> Found:
    return {"loss": policy_loss(*(example.values[name] for name in ("old", "new", "A")))["loss"]}


@EXAMPLES.by("the second optimizer step of a batch clips")
def second_step(example: Example) -> Found:
    first, second = (
        policy_loss(example.values["old"], example.values[name], example.values["A"]) for name in ("first", "second")
    )
    moves = np.abs(second["gradient.logprob"]) > 1e-7
    return {"first_loss": first["loss"], "second_loss": second["loss"], "second_has_gradient": moves}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
