"""Worked examples of the paper of vl_dac, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.loss import Train

EXAMPLES = PaperExamples("vl_dac")
GAE, WHITENING = recipes.VL_DAC.chain("advantage")
CRITIC, _ = recipes.VL_DAC.chain("loss")
LOSSES = given_advantages(recipes.VL_DAC)


@EXAMPLES.by("steps across an end by failure and a time limit")
def gae(example: Example) -> Found:
    """The fifth step continues: the value after it is that of a sixth, which the recipe cuts off."""
    given = example.values
    rewards, values = [*given["r"], 0.0], [*given["V"], float(given["V_next"])]

    def episode(first: int, *, cut: bool) -> dict[str, Any]:
        steps = [{"reward": reward} for reward in rewards[first : first + 2]]
        steps[1] |= {"truncated": True} if cut else {}
        return {"group": f"{first}", "path": "1 | 3 ~ 9 | 4", "reward": 0, "steps": steps} | (
            {"status": "truncated"} if cut else {}
        )

    result = computed(
        recipes.VL_DAC.replace(advantage=GAE),
        ["step.advantage", "step.return"],
        members=[episode(0, cut=False), episode(2, cut=True), episode(4, cut=True)],
        columns={"step": {"value": values}},
    )
    return {"advantage": result["step.advantage"][:5], "return": result["step.return"][:5]}


@EXAMPLES.by("normalised over the rollout; a rollout of one step")
def normalised(example: Example) -> Found:
    def whitened(steps: Value) -> Value:
        batch = small([(0, [1]) for _ in steps], draw_score=[0.0] * len(steps), step_advantage=steps)
        return np.array(column(WHITENING(batch), level="step"))

    return {"normalised": whitened(example.values["A"]), "of_one": whitened(example.values["one"])}


def step_loss(lengths: list[int], advantages: Value, **more: Any) -> Found:
    """Return loss and gradients of steps with these token counts, one in each rollout."""
    members = answers(lengths, advantages.tolist(), **more.pop("member", {}))
    return dict(computed(more.pop("losses", LOSSES), ["loss", "gradient.logprob"], members=members, **more))


def value_loss(critic: Train, example: Example) -> Value:
    given = example.values
    return computed(
        recipes.VL_DAC.replace(
            advantage=replace(GAE, column="given"), loss=critic, hooks=None, epochs=1, minibatches=1
        ),
        ["loss"],
        members=answers([1], [0.0]),
        columns={
            "step": {"value": [0.0], "given": [float(given["R"])]},
            "token": {"old_value": [float(given["V_old"])]},
        },
        critic={"value": [float(given["V"])]},
    )["loss"]


@EXAMPLES.by("loss of a step of four tokens after an update")
def after_an_update(example: Example) -> Found:
    given = example.values
    policy = step_loss(
        [4],
        given["A"].reshape(1),
        member={"logprobs": given["lp_old"].tolist()},
        policy={"logprob": given["lp"].tolist()},
    )["loss"]
    value = value_loss(CRITIC, example)
    clipped = replace(CRITIC, loss=replace(CRITIC.loss, clip=0.1))
    return {"value": value, "loss": value + policy, "value_of_the_code": value_loss(clipped, example)}


@EXAMPLES.by("a ratio above 10 with a negative advantage")
def far(example: Example) -> Found:
    """Each token is computed alone, without the divergence."""
    losses, advantages = given_advantages(recipes.VL_DAC, drift=None), example.values["A"].reshape(1)
    logprobs = np.log(example.values["rho"]) - 1.0
    return {
        "tokens": [
            step_loss([1], advantages, losses=losses, policy={"logprob": [logprob]})["loss"]
            for logprob in logprobs.tolist()
        ]
    }


@EXAMPLES.by("steps of two and of six tokens")
def uneven(example: Example) -> Found:
    """The example's number is twice ours, which is the mean of both steps."""
    given = example.values
    gradient = 2 * step_loss([2, 6], given["A"])["gradient.logprob"]
    one, other = np.split(gradient, [2])
    return {"per_token": np.array([one[0], other[0]]), "per_step": np.array([one.sum(), other.sum()])}


@EXAMPLES.by("first, second and third rollout")
def warm_up(example: Example) -> Found:
    (frozen,) = recipes.VL_DAC.chain("hooks")
    rollouts = example.values["rollout"].astype(int).tolist()
    return {"policy_trains": np.array([not frozen.is_due(rollout) for rollout in rollouts])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
