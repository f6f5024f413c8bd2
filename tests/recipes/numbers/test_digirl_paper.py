"""Worked examples of the paper of digirl, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.loss import Train
from agentrl_core.recipes.digirl import ImitatedSteps

EXAMPLES = PaperExamples("digirl")
ONE_PASS = recipes.DIGIRL.replace(
    loss=tuple(replace(link, epochs=1) if isinstance(link, Train) else link for link in recipes.DIGIRL.loss), epochs=1
)
"""The recipe with one optimizer step of each model: a case adds up the losses of all steps."""


@EXAMPLES.by("step advantages of a success and of a failure")
def digirl_steps(example: Example) -> Found:
    success, failure = ({"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": reward} for reward in (1, 0))
    result = computed(
        recipes.DIGIRL.replace(weight=ImitatedSteps(above=1 / 3)),
        ["step.advantage", "step.keep"],
        members=[{**success, "steps": [{"reward": 0}, {"reward": 0}, {"reward": 1}]}, failure],
        columns={
            "step": {
                "value": np.concatenate([example.values["V_s"], example.values["V_f"]]).tolist(),
                "task_value": [0.5] * 6,
            }
        },
    )
    advantages, kept = result["step.advantage"], result["step.keep"]
    return {
        "advantage_success": advantages[:3],
        "keep_success": kept[:3],
        "advantage_failure": advantages[3:],
        "keep_failure": kept[3:],
    }


def best_draws(rewards: Value, values: Value) -> Found:
    """Return DigiRL's values of draws of different tasks, and which it keeps; each draw has two steps."""
    result = computed(
        recipes.DIGIRL.replace(weight=recipes.DIGIRL.weight[1]),
        ["draw.task_advantage", "draw.keep"],
        members=[
            {"group": f"{place}", "path": "1 | 3 ~ 9 | 4", "reward": reward} for place, reward in enumerate(rewards)
        ],
        columns={"step": {"value": [0.5] * 2 * len(rewards), "task_value": np.repeat(values, 2).tolist()}},
    )
    return {"instruction_advantage": result["draw.task_advantage"], "keep": result["draw.keep"]}


@EXAMPLES.by("trajectories by instruction advantage")
def digirl_draws(example: Example) -> Found:
    return best_draws(example.values["R"], example.values["V"])


@EXAMPLES.by("a second iteration: the critic learnt the task, the kept set changes")
def digirl_second(example: Example) -> Found:
    return {
        f"keep_{at}": best_draws(example.values["R"], example.values[f"V_{at}"])["keep"] for at in ("first", "second")
    }


@EXAMPLES.by("losses of the critics")
def digirl_critics(example: Example) -> Found:
    """The step critic is fitted on one step of each trajectory; the instruction critic on trajectories of two steps."""
    values, rewards = example.values["V"], example.values["r"]
    logits = np.log(values / (1 - values))
    results = {}
    for name, path, steps in (("critic", "1 | 3", 1), ("instruction_critic", "1 | 3 ~ 9 | 4", 2)):
        columns = {"value": np.repeat(values, steps).tolist(), "task_value": np.repeat(values, steps).tolist()}
        results[name] = computed(
            ONE_PASS,
            [f"loss.{name}"],
            members=[{"group": f"{place}", "path": path, "reward": reward} for place, reward in enumerate(rewards)],
            columns={"step": columns},
            critic={"value": np.repeat(logits, steps).tolist()},
            instruction_critic={"value": np.repeat(logits, steps).tolist()},
        )[f"loss.{name}"]
    return {"critic_loss": results["critic"], "instruction_critic_loss": results["instruction_critic"]}


@EXAMPLES.by("instructions of trajectories of one and of three steps")
def digirl_instructions(example: Example) -> Found:
    logits = np.log(example.values["V"] / (1 - example.values["V"]))
    step_logits = [logits[0], *[logits[1]] * 3]
    result = computed(
        ONE_PASS,
        ["loss.instruction_critic"],
        members=[
            {"group": "a", "path": "1 | 3", "reward": 1},
            {"group": "b", "path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": 0},
        ],
        columns={"step": {"value": [0.5] * 4, "task_value": [0.5] * 4}},
        instruction_critic={"value": step_logits},
        critic={"value": step_logits},
    )
    return {"loss": result["loss.instruction_critic"]}


@EXAMPLES.by("an action of several tokens")
def digirl_tokens(example: Example) -> Found:
    """Use the paper's filter: the mean is over kept rows, so the loss over two rows is half of it."""
    logprobs = example.values["tokens"].tolist()
    result = computed(
        ONE_PASS,
        ["loss.policy"],
        members=[
            {"group": "a", "path": "1 | 3*3", "reward": 1},
            {"group": "b", "path": "1 | 4", "reward": 0},
        ],
        columns={"step": {"value": [0.5, 0.5], "task_value": [0.5, 0.5]}},
        policy={"logprob": [*logprobs, -4.0]},
        critic={"value": [0.0] * 4},
        instruction_critic={"value": [0.0] * 4},
    )
    return {"loss_over_two_rows": result["loss.policy"] / 2}


@EXAMPLES.by("kept actions of two tokens and of one")
def digirl_actions(example: Example) -> Found:
    logprobs = np.concatenate([example.values["first"], example.values["second"]])
    result = computed(
        ONE_PASS,
        ["loss.policy", "gradient.logprob"],
        members=[{"path": "1 | 3 4 ~ 9 9 | 5", "reward": 1, "steps": [{"reward": 0}, {"reward": 1}]}],
        columns={"step": {"value": [0.4, 0.5], "task_value": [0.5, 0.5]}},
        policy={"logprob": logprobs.tolist()},
        critic={"value": [0.0] * 3},
        instruction_critic={"value": [0.0] * 3},
    )
    return {"loss": result["loss.policy"], "gradient": result["gradient.logprob"]}


def test_a_batch_is_twenty_steps_of_the_actor_and_five_of_each_critic() -> None:
    steps = {link.model: link.epochs for link in recipes.DIGIRL.losses()}
    assert steps == {"instruction_critic": 5, "critic": 5, "policy": 20}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
