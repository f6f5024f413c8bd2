"""Worked examples of the paper of deep_travel, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from common_examples import given_advantages, one_rollout
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from pools import Story

from agentrl_core import recipes
from agentrl_core.select import Selection

EXAMPLES = PaperExamples("deep_travel")
RECIPE = recipes.DEEP_TRAVEL
QUEUE = RECIPE.select.queue
LOSSES = given_advantages(RECIPE)


@EXAMPLES.by("five trajectories of unequal numbers of turns")
def gated(example: Example) -> Found:
    given = example.values
    members = [
        {"path": "1 " + " ~ 9 ".join(["| 3"] * turns), "reward": feasible, "rewards": {"turns": consistent / turns}}
        for feasible, turns, consistent in zip(
            given["feasible"].tolist(), given["turns"].astype(int).tolist(), given["consistent"], strict=True
        )
    ]
    first, turns, rest = RECIPE.reward
    soft = RECIPE.replace(reward=(first, replace(turns, kind="multiply"), rest))
    result = computed(RECIPE, ["draw.score", "draw.advantage"], members=members)
    return {
        "reward": result["draw.score"],
        "soft_reward": computed(soft, ["draw.score"], members=members)["draw.score"],
        "advantage": result["draw.advantage"],
    }


@EXAMPLES.by("the buffer over three steps")
def buffer(example: Example) -> Found:
    story, queue = Story(), replace(QUEUE, every=2)
    solved = {row: [1.0] * int(count) + [0.0] * (4 - int(count)) for row, count in enumerate(example.values["solved"])}
    state = queue.next(queue.initial_state(), story.visits(0, solved), None)
    entered = state["rows"]
    results = {"enters": np.isin(np.arange(len(solved)), entered), "size_after_step_1": len(entered)}
    groups = round(len(entered) / queue.share)
    assert not len(queue.offered(state, groups, 1, entered[:0])), "the period is 2"
    offered = queue.offered(state, groups, 2, entered[:0])
    selection = Selection.of(state["rows"][offered], 4)
    selection.items[:] = state["items"][offered]
    again = {row: [float(place == 0)] + [0.0] * 3 for place, row in enumerate(selection.rows.tolist())}
    state = queue.next(state, story.visits(2, again), selection)
    return {**results, "stays": np.isin(entered, state["rows"]), "size_after_step_2": len(state["rows"])}


def test_a_task_leaves_after_its_tries() -> None:
    story, state = Story(), QUEUE.initial_state()
    state = QUEUE.next(state, story.visits(0, {0: [0.0]}), None)
    queue_sizes = []
    for place in range(1, 6):
        selection = Selection.of(np.array([0]), 1)
        selection.items[:] = 0
        state = QUEUE.next(state, story.visits(QUEUE.every * place, {0: [0.0]}), selection)
        queue_sizes.append(len(state["rows"]))
    assert queue_sizes == [1, 1, 1, 1, 0]


@EXAMPLES.by("a group of one and a failed call of the verifier (convention)")
def failed_verifier(example: Example) -> Found:
    def member(group: str, reward: float, **more: Any) -> dict[str, Any]:
        return {"group": group, "path": "1 | 3", "reward": reward, "rewards": {"turns": 1.0}, **more}

    failed = {"steps": [{"flags": ["judge_failed"]}]}
    scored = example.values["R"].tolist()
    members = [*(member("a", reward) for reward in scored), member("a", 1.0, **failed), member("b", 1.0)]
    result = computed(RECIPE, ["draw.score", "draw.advantage"], members=members)
    assert result["draw.advantage"][3] == 0.0, "it is not trained"
    advantages = np.where(np.isnan(result["draw.score"]), np.nan, result["draw.advantage"])
    outcomes = {0: [*example.values["others"].tolist(), np.nan]}
    state = QUEUE.next(QUEUE.initial_state(), Story().visits(0, outcomes), None)
    return {"advantage": advantages[:4], "centred_reward_of_one": advantages[4], "prompt_enters": len(state["rows"])}


@EXAMPLES.by("tool tokens, two optimizer steps")
def later_step(example: Example) -> Found:
    old, second, advantages, mask = (example.values[name] for name in ("old", "second", "A", "mask"))
    return {
        "first_loss": one_rollout(LOSSES, old, old, advantages, mask)["loss"],
        "second_loss": one_rollout(LOSSES, old, second, advantages, mask)["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
