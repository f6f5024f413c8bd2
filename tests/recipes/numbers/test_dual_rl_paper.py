"""Worked examples of the paper of dual_rl, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("dual_rl")
CRITIC, ACTOR = recipes.DUAL_RL.chain("loss")
BY_CHI_SQUARED = recipes.DUAL_RL.replace(
    loss=(replace(CRITIC, loss=replace(CRITIC.loss, divergence="chi_squared")), ACTOR)
)


def critic_loss(recipe: Recipe, targets: Value, values: Value) -> tuple[Value, Value]:
    """Return loss and gradient of the critic, of one-step draws with these targets and values."""
    members = [{"path": "1 | 3", "reward": 0, "steps": [{"reward": float(target)}]} for target in targets]
    result = computed(
        recipe,
        ["loss.critic", "gradient.critic.value"],
        members=members,
        columns={"step": {"value": [0.0] * len(targets)}},
        critic={"value": values.tolist()},
    )
    return result["loss.critic"], result["gradient.critic.value"]


@EXAMPLES.by("value losses of four transitions")
def losses(example: Example) -> Found:
    results: Found = {}
    nothing = np.zeros(len(example.values["d"]))
    for name, recipe in (("chi_square", BY_CHI_SQUARED), ("total_variation", recipes.DUAL_RL)):
        results[f"loss_{name}"] = critic_loss(recipe, example.values["d"], nothing)[0]
        results[name] = np.concatenate(
            [critic_loss(recipe, np.array([d]), nothing[:1])[0] for d in example.values["d"]]
        )
    return results


@EXAMPLES.by("gradient of V")
def slopes(example: Example) -> Found:
    log_ratios = example.values["d"]
    return {
        name: len(log_ratios) * critic_loss(recipe, log_ratios, np.zeros(len(log_ratios)))[1]
        for name, recipe in (("chi_square", BY_CHI_SQUARED), ("total_variation", recipes.DUAL_RL))
    }


@EXAMPLES.by("critic targets of an episode of three transitions")
def targets(example: Example) -> Found:
    given = example.values
    steps = [{"reward": reward} for reward in given["r"].tolist()]
    member: dict[str, Any] = {"path": "1 | 3 ~ 9 | 3 ~ 9 | 3", "reward": 0, "success": False, "steps": steps}
    values = [0.5, *given["V_next"][:-1].tolist()]
    result = computed(recipes.DUAL_RL, ["step.return"], members=[member], columns={"step": {"value": values}})
    return {"target": result["step.return"]}


@EXAMPLES.by("actor weights of a fixed data set")
def actor(example: Example) -> Found:
    given = example.values
    result = computed(
        recipes.DUAL_RL,
        ["step.imitation", "loss.policy"],
        members=[{"path": "1 | 3", "reward": 0, "steps": [{"reward": each}]} for each in given["A"].tolist()],
        columns={"step": {"value": [0.0] * len(given["A"])}},
        policy={"logprob": given["logp"].tolist()},
        critic={"value": [0.0] * len(given["A"])},
    )
    return {"weight": result["step.imitation"], "loss": result["loss.policy"]}


@EXAMPLES.by("two value steps on one state")
def two_steps(example: Example) -> Found:
    results, value = [], float(example.values["V"])
    for _ in range(2):
        actions = example.values["Q"]
        value -= 0.5 * critic_loss(recipes.DUAL_RL, actions, np.full(len(actions), value))[1].sum()
        results.append(value)
    return {"first": np.array(results[0]), "second": np.array(results[1])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
