"""Worked examples of the paper of digirl, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipes.digirl import ImitatedSteps

EXAMPLES = PaperExamples("digirl")


@EXAMPLES.by("step advantages of a success and of a failure")
def digirl_steps(example: Example) -> Found:
    success, failure = ({"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": reward} for reward in (1, 0))
    found = computed(
        recipes.DIGIRL.replace(weight=ImitatedSteps(above=1 / 3)),
        ["step.advantage", "step.keep"],
        members=[{**success, "steps": [{"reward": 0}, {"reward": 0}, {"reward": 1}]}, failure],
        columns={"step": {"value": np.concatenate([example.values["V_s"], example.values["V_f"]]).tolist()}},
    )
    advantages, kept = found["step.advantage"], found["step.keep"]
    return {
        "advantage_success": advantages[:3],
        "keep_success": kept[:3],
        "advantage_failure": advantages[3:],
        "keep_failure": kept[3:],
    }


def best_draws(rewards: Value, values: Value) -> Value:
    """Which draws DigiRL keeps, of different tasks."""
    found = computed(
        recipes.DIGIRL.replace(weight=recipes.DIGIRL.weight[1]),
        ["draw.keep"],
        members=[{"group": f"{place}", "path": "1 | 3", "reward": reward} for place, reward in enumerate(rewards)],
        columns={"draw": {"task_advantage": (rewards - values).tolist()}, "step": {"value": [0.5] * len(rewards)}},
    )
    return found["draw.keep"]


@EXAMPLES.by("trajectories by instruction advantage")
def digirl_draws(example: Example) -> Found:
    return {"keep": best_draws(example.values["R"], example.values["V"])}


@EXAMPLES.by("a second iteration: the critic learnt the task, the kept set changes")
def digirl_second(example: Example) -> Found:
    return {f"keep_{at}": best_draws(example.values["R"], example.values[f"V_{at}"]) for at in ("first", "second")}


@EXAMPLES.by("losses of the critics")
def digirl_critics(example: Example) -> Found:
    values, rewards = example.values["V"], example.values["r"]
    found = computed(
        recipes.DIGIRL,
        ["loss.critic"],
        members=[{"group": f"{place}", "path": "1 | 3", "reward": reward} for place, reward in enumerate(rewards)],
        columns={"draw": {"task_advantage": rewards.tolist()}, "step": {"value": values.tolist()}},
        critic={"value": np.log(values / (1 - values)).tolist()},
    )
    return {"critic_loss": found["loss.critic"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
