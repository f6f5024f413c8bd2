"""Worked examples of the paper of h2o, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from rollouts import small

from agentrl_core import recipes

EXAMPLES = PaperExamples("h2o")


def critic_numbers(
    members: Sequence[dict[str, Any]], gaps: Value, values: Value, now: Value | None = None
) -> Mapping[str, Value]:
    """Return the critic's trust, targets, loss and gradient at simulator-to-reality log-ratios; `nan`: a real step."""
    odds = np.exp(-gaps)
    columns = {"real_probability": odds / (1 + odds), "real_action_probability": np.where(np.isnan(gaps), gaps, 0.5)}
    return computed(
        recipes.H2O,
        ["step.trust", "step.slope", "step.return", "loss.critic", "gradient.critic.value"],
        members=members,
        columns={
            "step": dict.fromkeys(("value", "target_value"), values.tolist())
            | {name: each.tolist() for name, each in columns.items()}
        },
        critic={"value": (values if now is None else now).tolist()},
    )


def one_step_rollout(reward: float = 0.0) -> dict[str, Any]:
    """Return a rollout of one step."""
    return {"path": "1 | 3", "reward": 0, "steps": [{"reward": reward}]}


@EXAMPLES.by("ratio of dynamics from two discriminators")
def ratios(example: Example) -> Found:
    given = example.values
    pair = given["l_sa"][0] - given["l_sa"][1]
    triples = np.array([np.subtract(*(given[name] + given["l_sa"])) for name in ("l_sas_a", "l_sas_b")])
    columns = {
        "value": [0.0, 0.0],
        "target_value": [0.0, 0.0],
        "real_probability": (1 / (1 + np.exp(-triples))).tolist(),
        "real_action_probability": [1 / (1 + np.exp(-pair))] * 2,
    }
    result = computed(recipes.H2O, ["step.trust"], members=[one_step_rollout()] * 2, columns={"step": columns})
    return {"weight": result["step.trust"]}


@EXAMPLES.by("TD loss of real and simulated transitions")
def td_loss(example: Example) -> Found:
    """The loss, minus the values times their slopes."""
    given = example.values
    steps = [{"reward": reward} for reward in given["r_real"].tolist()]
    real = {"path": "1 | 3 ~ 9 | 3 ~ 9 | 3", "reward": 0, "success": False, "steps": steps}
    simulated = [one_step_rollout(float(target)) for target in given["y_sim"]]
    gaps = np.array([np.nan] * 3 + (-np.log(given["w"])).tolist())
    values = np.array([0.0, *given["next_real"][:-1], 0.0, 0.0])
    now = np.concatenate([given["q_real"], given["q_sim"]])
    result = critic_numbers([real, *simulated], gaps, values, now)
    loss = result["loss.critic"] - (result["step.slope"] * now).mean()
    assert recipes.H2O.advantage.gamma == given["gamma"]
    return {"target": result["step.return"][:3], "loss": loss}


@EXAMPLES.by("penalty by the gap")
def penalty(example: Example) -> Found:
    """Targets equal the values, so the loss and its gradient are those of the penalty."""
    given = example.values
    values = np.concatenate([given["q_sim"], given["q_real"]])
    gaps = np.array([*given["log_gap"], np.nan, np.nan])
    result = critic_numbers([one_step_rollout(float(value)) for value in values], gaps, values)
    slopes = result["gradient.critic.value"]
    np.testing.assert_allclose(slopes, result["step.slope"] / len(values), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(slopes[3:], -0.01 / 2, rtol=1e-6)
    np.testing.assert_allclose(slopes[:3], example.expect["slope_in_simulated_values"], rtol=1e-5, atol=1e-11)
    plain = slopes[:3] / np.exp(given["q_sim"])
    return {"omega": plain / plain.sum(), "slope_in_simulated_values": slopes[:3]}


@EXAMPLES.by("policy loss, then the targets over two optimizer steps")
def targets(example: Example) -> Found:
    """The target follows the critic's weight after each of its steps; the next batch reads it."""
    given, followed = example.values, []
    models = {name: torch.nn.Linear(1, 1, bias=False).double() for name in ("policy", "critic", "target")}
    models["target"].weight.data.fill_(float(given["start"]))
    optimizer = torch.optim.SGD(models["critic"].parameters(), lr=0.0)
    recipe = recipes.H2O.replace(epochs=2, loss=recipes.H2O.chain("loss")[0])
    unknown = {"real_probability": [np.nan], "real_action_probability": [np.nan]}
    batch = small([(0, [1])], draw_score=[0.0]).with_columns(
        "step", reward=[0.0], value=[0.0], target_value=[0.0], **unknown
    )
    updates = recipe.updates(recipe.credit(batch), models=models)
    for update, value in zip(updates, given["value"], strict=True):
        followed.append(models["target"].weight.item())
        models["critic"].weight.data.fill_(value)
        update.step(optimizer)
    recipe.run_hooks(updates, **models)
    followed = [*followed[1:], models["target"].weight.item()]
    two = {"path": "1 | 3 ~ 9 | 3", "reward": 0, "steps": [{"reward": float(given["r"])}, {"reward": 0.0}]}
    result = critic_numbers([two], np.full(2, np.nan), np.array([0.0, followed[-1]]))
    return {"target_1": followed[0], "target_2": followed[1], "next_target": result["step.return"][:1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
