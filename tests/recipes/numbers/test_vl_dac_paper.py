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

EXAMPLES = PaperExamples("vl_dac")
GAE, WHITENING = recipes.VL_DAC.chain("advantage")
CRITIC, _ = recipes.VL_DAC.chain("loss")
LOSSES = given_advantages(recipes.VL_DAC)


@EXAMPLES.by("steps across an end by failure and a time limit")
def gae(example: Example) -> Found:
    """The fifth step goes on: its value behind is that of a sixth, which the recipe cuts off."""
    given = example.values
    rewards, values = [*given["r"], 0.0], [*given["V"], float(given["V_next"])]

    def episode(first: int, *, cut: bool) -> dict[str, Any]:
        steps = [{"reward": reward} for reward in rewards[first : first + 2]]
        steps[1] |= {"truncated": True} if cut else {}
        return {"group": f"{first}", "path": "1 | 3 ~ 9 | 4", "reward": 0, "steps": steps} | (
            {"status": "truncated"} if cut else {}
        )

    found = computed(
        recipes.VL_DAC.replace(advantage=GAE),
        ["step.advantage", "step.return"],
        members=[episode(0, cut=False), episode(2, cut=True), episode(4, cut=True)],
        columns={"step": {"value": values}, "token": {"reference_logprob": [-1.0] * 6}},
    )
    return {"advantage": found["step.advantage"][:5], "return": found["step.return"][:5]}


@EXAMPLES.by("normalised over the rollout; a rollout of one step")
def normalised(example: Example) -> Found:
    def whitened(steps: Value) -> Value:
        batch = small([(0, [1]) for _ in steps], draw_score=[0.0] * len(steps), step_advantage=steps)
        return np.array(column(WHITENING(batch), level="step"))

    return {"normalised": whitened(example.values["A"]), "of_one": whitened(example.values["one"])}


def step_loss(lengths: list[int], given: Value, **more: Any) -> Found:
    """Loss and gradients of steps of so many tokens, one in each rollout."""
    count = sum(lengths)
    tokens = {"reference_logprob": more.pop("reference", [-1.0] * count)}
    members = answers(lengths, given.tolist(), **more.pop("member", {}))
    found = computed(LOSSES, ["loss", "gradient.logprob"], members=members, columns={"token": tokens}, **more)
    return dict(found)


@EXAMPLES.by("loss of a step of four tokens after an update")
def after_an_update(example: Example) -> Found:
    given = example.values
    policy = step_loss(
        [4],
        given["A"].reshape(1),
        member={"logprobs": given["lp_old"].tolist()},
        reference=given["lp_ref"].tolist(),
        policy={"logprob": given["lp"].tolist()},
    )["loss"]
    value = computed(
        recipes.VL_DAC.replace(advantage=replace(GAE, column="given"), loss=replace(CRITIC, epochs=1, minibatches=1)),
        ["loss"],
        members=answers([1], [0.0]),
        columns={
            "step": {"value": [0.0], "given": [float(given["R"])]},
            "token": {"old_value": [float(given["V_old"])]},
        },
        critic={"value": [float(given["V"])]},
    )["loss"]
    return {"value": value, "loss": value + policy}


@EXAMPLES.by("steps of two and of six tokens")
def uneven(example: Example) -> Found:
    """Twice ours, which is the mean of both steps."""
    given = example.values
    gradient = 2 * step_loss([2, 6], given["A"])["gradient.logprob"]
    one, other = np.split(gradient, [2])
    return {"per_token": np.array([one[0], other[0]]), "per_step": np.array([one.sum(), other.sum()])}


def test_a_ratio_above_ten_has_no_gradient() -> None:
    found = step_loss([1], np.array([-1.0]), policy={"logprob": [float(np.log(12.0)) - 1.0]})
    kl = 0.04 * (1 - 1 / 12)  # the reference is the policy that sampled
    np.testing.assert_allclose(found["gradient.logprob"], kl)


def test_steps_of_a_batch_are_those_of_the_code() -> None:
    assert recipes.VL_DAC.epochs * recipes.VL_DAC.minibatches == 256


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
