"""Worked examples of the paper of vla_rl, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("vla_rl")
CRITIC, POLICY = (link.loss for link in recipes.VLA_RL.chain("loss"))
OF_STEPS = GroupRelative(column="reward", level="step", center="none", scale="none")
LOSSES = recipes.VLA_RL.replace(reward=OutcomeScore(), advantage=OF_STEPS, loss=POLICY, hooks=None, minibatches=1)
"""The recipe with only the policy's loss: the reward of a step is its advantage."""


def acted(tokens: int, rewards: Value) -> dict[str, Any]:
    """Return an episode of steps with these token counts and rewards."""
    path = "1 | " + " ~ 9 | ".join([f"3*{tokens}"] * len(rewards))
    return {"path": path, "steps": [{"reward": reward} for reward in rewards.tolist()], "reward": float(rewards[-1])}


def moved(recipe: Recipe, log_ratios: Value, advantage: Value) -> Found:
    """Return loss and gradient of actions with these token log-ratios, `[actions, tokens]`, and advantages."""
    names, policy = ["loss", "gradient.logprob"], {"logprob": (log_ratios.ravel() - 1.0).tolist()}
    return dict(computed(recipe, names, members=[acted(log_ratios.shape[1], advantage)], policy=policy))


@EXAMPLES.by("an action of three tokens, one ratio")
def action(example: Example) -> Found:
    log_ratios, advantages = example.values["d"], example.values["A"]
    terms = [moved(LOSSES, log_ratios[[at]], advantages[[at]])["loss"] for at in range(3)]
    free = moved(LOSSES.replace(loss=replace(POLICY, clip=None)), log_ratios, advantages)["gradient.logprob"]
    return {
        "terms": np.concatenate(terms),
        "loss": moved(LOSSES, log_ratios, advantages)["loss"],
        "ratio": -3 * free[::3] / advantages,
    }


@EXAMPLES.by("GAE of a success and of a cut-off episode")
def estimates(example: Example) -> Found:
    given = example.values
    success, cut = acted(1, np.array([0.0, 0.0, 1.0])), acted(1, np.zeros(2))
    cut["steps"][1]["truncated"] = True
    columns = {
        "process_reward": [0.0] * 5,
        "value": [*given["V"], *given["U"]],
        "next_value": [0.0, 0.0, 0.0, 0.0, float(given["next_U"])],
    }
    result = computed(
        recipes.VLA_RL,
        ["step.advantage", "step.return"],
        members=[{**success, "group": "a"}, {**cut, "status": "truncated", "group": "b"}],
        columns={"step": columns, "token": {"old_value": [0.0] * 5}},
    )
    return {
        "advantage_success": result["step.advantage"][:3],
        "value_target": result["step.return"][:3],
        "advantage_cut_off": result["step.advantage"][3:],
    }


@EXAMPLES.by("value loss")
def value_loss(example: Example) -> Found:
    """Episodes have one step, whose return is their reward."""
    given = example.values
    steps = {"process_reward": [0.0] * 2, "value": given["V_old"].tolist(), "next_value": [0.0] * 2}
    result = computed(
        recipes.VLA_RL.replace(hooks=None, minibatches=1),
        ["loss.critic"],
        members=[acted(1, given["R"][[at]]) for at in range(2)],
        columns={"step": steps, "token": {"old_value": given["V_old"].tolist()}},
        critic={"value": given["V"].tolist()},
    )
    return {"value_loss": result["loss.critic"]}


@EXAMPLES.by("warm-up of the critic")
def warm_up(example: Example) -> Found:
    (frozen,) = recipes.VLA_RL.chain("hooks")
    steps = example.values["step"].astype(int).tolist()
    return {"policy_trains": np.array([not frozen.is_due(step) for step in steps])}


@EXAMPLES.by("two mini-batches in one epoch and a second epoch")
def stored(example: Example) -> Found:
    """Log-probs are stored; the log-ratio is 0.25 from the second epoch on."""
    free = LOSSES.replace(loss=replace(POLICY, clip=None))
    one = np.array([float(example.values["A"])])
    drift = example.values["drift"]
    later = np.array([[0.4 - drift[1]]])
    return {
        "ratio_if_stored": [-moved(free, np.array([[each]]), one)["loss"] for each in drift],
        "ratio_epoch_1": -moved(free, later, one)["loss"],
        "objective_epoch_1": -moved(LOSSES, later, one)["loss"],
    }


@EXAMPLES.by("curriculum over three tasks")
def curriculum(example: Example) -> Found:
    select = recipes.VLA_RL.select
    assert float(example.values["tau"]) == select.sample.temperature
    return {"probability": select.sample.probabilities(select.score(example.values["s"]))}


@EXAMPLES.by("process reward")
def process_reward(example: Example) -> Found:
    steps = {
        "process_reward": example.values["judged"].tolist(),
        "value": [0.0] * 3,
        "next_value": [0.0] * 3,
    }
    result = computed(
        recipes.VLA_RL,
        ["step.step_score"],
        members=[acted(1, example.values["environment"])],
        columns={"step": steps, "token": {"old_value": [0.0] * 3}},
    )
    return {"reward": result["step.step_score"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
