"""Worked examples of the paper of rosa, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("rosa")


def shifts(example: Example) -> tuple[Value, Value, Value]:
    """Target shifts of one-token turns, and losses and gradients of turns that have moved by exactly these."""
    probability, feedback = (np.ravel(example.values[name]) for name in "pr")
    recipe = recipes.ROSA.replace(advantage=replace(recipes.ROSA.advantage, beta=float(example.values["beta"])))
    steps = [{} if np.isnan(reward) else {"reward": float(reward)} for reward in np.resize(feedback, len(probability))]
    old = np.log(probability)
    path = "1 " + " ~ 9 ".join(["| 3"] * len(old))
    members = [{"path": path, "reward": 0.0, "steps": steps, "logprobs": old.tolist()}]
    advantages = computed(recipe, ["step.advantage"], members=members)["step.advantage"]
    names = ["loss", "gradient.logprob"]
    moved = computed(recipe, names, members=members, policy={"logprob": (old + advantages).tolist()})
    return advantages, moved["loss"], moved["gradient.logprob"]


@EXAMPLES.by("shift for three probabilities")
def three_probabilities(example: Example) -> Found:
    shift, loss, gradient = shifts(example)
    np.testing.assert_allclose([*loss, *gradient], 0.0, atol=1e-6, err_msg="the optimum is where the loss is 0")
    return {"shift": shift}


@EXAMPLES.by("a turn without feedback (convention)")
def without_feedback(example: Example) -> Found:
    silent = {"r": np.append(example.values["r"], np.nan), "p": np.append(example.values["p"], 0.3)}
    step_shift, _, gradient = shifts(replace(example, values=example.values | silent))
    assert step_shift[1] == 0.0
    assert abs(gradient[1]) < 1e-6, "no step is taken"
    return {"shift": np.append(step_shift[0], np.nan)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
