"""Worked examples of the paper of craft_gui, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from pools import Story, pool, selection_request

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.select import ComposedSelector

EXAMPLES = PaperExamples("craft_gui")
COMMON = CommonExamples(EXAMPLES, recipes.CRAFT_GUI)
EXAMPLES.by("two steps of one task with screen tokens")(COMMON.tool_tokens)
EXAMPLES.by("old samples and a second optimizer step")(COMMON.second_step)
SELECT = recipes.CRAFT_GUI.select
assert isinstance(SELECT, ComposedSelector)


def stepped(name: str, **parts: Value) -> Value:
    """Return a column of a group of steps with these components of their reward; an omitted component is missing."""
    count = max(np.size(each) for each in parts.values())
    known = {part: np.broadcast_to(value, count) for part, value in parts.items()}
    missing: dict[str, Any] = dict.fromkeys(("format", "action", "argument", "judge"), "nan")
    members = [
        {**member, "rewards": missing | {part: float(value[at]) for part, value in known.items()}}
        for at, member in enumerate(answers([1] * count, [0.0] * count))
    ]
    return computed(recipes.CRAFT_GUI, [f"draw.{name}"], members=members)[f"draw.{name}"]


@EXAMPLES.by("a group of five steps with an action")
def steps(example: Example) -> Found:
    parts = {"format": example.values["format"], "action": example.values["type"]}
    parts["argument"] = example.values["argument"]
    return {"reward": stepped("score", **parts), "advantage_n_minus_1": stepped("advantage", **parts)}


@EXAMPLES.by("a text question, with and without the judge")
def question(example: Example) -> Found:
    parts = {"format": example.values["format"], "action": example.values["type"]}
    return {
        "reward": stepped("score", **parts, judge=example.values["judge"]),
        "reward_without_judge": stepped("score", **parts),
    }


def may_sample(stage: int, steps: Value) -> Value:
    """Return the reference lengths that a stage samples; each has twenty tasks."""
    task_pool = pool(20 * len(steps))
    task_pool.column("attempts")
    task_pool._columns["reference_steps"] = np.tile(steps, 20)
    state = SELECT.initial_state()
    state["stage"]["stage"] = stage
    chosen = [SELECT.choose(task_pool, state, selection_request(20), each).rows for each in range(10)]
    return np.isin(steps, task_pool.column("reference_steps")[np.concatenate(chosen)])


@EXAMPLES.by("which tasks a stage may sample")
def stages(example: Example) -> Found:
    steps = example.values["steps"]
    allowed = [may_sample(stage, steps) for stage in range(3)]
    task_pool, switch = pool(1), []
    task_pool.column("attempts")
    task_pool._columns["reference_steps"] = steps[:1]
    for success in example.values["success"]:
        outcomes = [1.0] * round(100 * success) + [0.0] * round(100 * (1 - success))
        closed = IterationRecord(0, arl.Forest().freeze(), pool=task_pool)
        state = SELECT.stage.next(SELECT.initial_state()["stage"], Story().visits(0, {0: outcomes}), closed)
        switch.append(state["stage"])
    return {
        "bucket": 3 - np.sum(allowed, axis=0) + 1,
        "stage_1": allowed[0],
        "stage_2": allowed[1],
        "stage_3": allowed[2],
        "switch": switch,
    }


@EXAMPLES.by("a group of one (convention)")
def alone(example: Example) -> Found:
    return {"advantage": advantages(plain_reward(recipes.CRAFT_GUI), [float(example.values["R"])])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
