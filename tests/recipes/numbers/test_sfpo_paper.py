"""Worked examples of the paper of sfpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.sfpo import FAST, DeviationSwitch
from agentrl_core.schedule import Choice

EXAMPLES = PaperExamples("sfpo")
SFPO = recipes.SFPO
HOOKS = SFPO.hooks
assert isinstance(HOOKS, Choice)
TRIGGER = HOOKS.by
assert isinstance(TRIGGER, DeviationSwitch)
BATCH = small([(0, [1]), (0, [1])], draw_score=[1.0, 0.0])


def steps(recipe: Recipe, theta: Value, curvature: Value, rate: float, states: dict[str, Any] | None = None) -> Value:
    """Return weights after the optimizer steps of an iteration, if the gradient is the curvature times the weight."""
    model = torch.nn.Linear(len(np.atleast_1d(theta)), 1, bias=False).double()
    with torch.no_grad():
        model.weight[:] = torch.from_numpy(np.atleast_1d(theta))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    batch = recipe.credit(recipe.with_states(BATCH, states or {}))
    updates = recipe.updates(batch, models={"policy": model})
    for update in updates:
        (0.5 * torch.from_numpy(np.atleast_1d(curvature)) * model.weight**2).sum().backward()
        update.step(optimizer)
    recipe.run_hooks(updates, policy=model)
    new_weights: Value = model.weight.detach().numpy()[0]
    return new_weights


@EXAMPLES.by("three inner steps on a quadratic loss of two weights")
def stages(example: Example) -> Found:
    given = (*(example.values[name] for name in ("theta_0", "curvature")), float(example.values["eta"]))
    after = steps(SFPO, *given)
    return {
        "fast": steps(SFPO.replace(hooks=None, epochs=FAST), *given),
        "repositioned": steps(SFPO.replace(hooks=HOOKS.of[0], epochs=FAST), *given),
        "after": after,
    }


@EXAMPLES.by("gain of the fast trajectory")
def gain(example: Example) -> Found:
    lam, eta = example.values["lam"], float(example.values["eta"])
    return {"gain": 1 / lam - steps(SFPO.replace(hooks=None, epochs=FAST), 1 / lam, lam, eta)}


@EXAMPLES.by("alpha 0 is one plain step, alpha 1 is K + 1 steps")
def extremes(example: Example) -> Found:
    theta, eta = example.values["theta_0"], float(example.values["eta"])
    triggered = {"hooks[0].Choice.by": {"value": 1.0, "recent": [1.0], "missed": 0}, "actions": {"steps": 4}}
    return {
        "alpha_0": steps(SFPO, theta, np.ones(1), eta, triggered),
        "alpha_1": steps(SFPO.replace(hooks=None), theta, np.ones(1), eta),
    }


def triggered(controller: DeviationSwitch, entropies: list[float]) -> float:
    """Return 1 if the fast steps are left out after these entropies, else 0."""
    state = controller.initial_state()
    for entropy in entropies:
        state = controller.moved(state, {"entropy": entropy})
    return controller.value(state)


@EXAMPLES.by("the trigger by entropy")
def trigger(example: Example) -> Found:
    """Both sides of the notes, with the example's window and threshold."""
    before, last = example.values["before"].tolist(), float(example.values["H"])
    of_notes = replace(TRIGGER, window=len(before) + 1, threshold=float(example.values["tau"]), side="both")
    return {"trigger": np.array(triggered(of_notes, [0.0, *before, last]))}  # the first value leaves the window


@EXAMPLES.by("the trigger of the code")
def trigger_of_code(example: Example) -> Found:
    given = example.values
    before = [float(given["even"][place % 2]) for place in range(29)]
    assert triggered(TRIGGER, [0.1, 0.9]) == 0.0, "too few"
    return {"trigger": [triggered(TRIGGER, [*before, float(given[name])]) for name in ("H_low", "H_high")]}


@EXAMPLES.by("the loss at the repositioned weights still has the ratio to the start of the batch")
def repositioned(example: Example) -> Found:
    given = example.values
    losses = given_advantages(SFPO)
    moved = computed(
        losses.replace(advantage=GroupRelative(column="given", level="token", center="none", scale="none")),
        ["loss", "gradient.logprob"],
        members=[
            {**member, "logprobs": old}
            for member, old in zip(
                answers([3, 1], [1, 1]), [given["old"][:3].tolist(), given["old"][3:].tolist()], strict=True
            )
        ],
        columns={"token": {"given": given["A"].tolist()}},
        policy={"logprob": given["at_reposition"].tolist()},
    )
    return {"objective": -moved["loss"], "has_gradient": moved["gradient.logprob"] != 0}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
