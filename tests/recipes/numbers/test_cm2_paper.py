"""Worked examples of the paper of cm2, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, path_of, plain_reward
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from rollouts import small

from agentrl_core import Batch, recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipes.cm2 import ChecklistRelative

EXAMPLES = PaperExamples("cm2")
CommonExamples(EXAMPLES, recipes.CM2.replace(weight=None))
TURNS = GroupRelative(column="turn_reward", level="step", group_by="group_id,turn", voter="trajectory", scale="none")
"""The recipe at the paper's level of turns."""
CODE_TURNS = replace(TURNS, votes_at_least=5)
"""The recipe at the code's level."""


def checked(steps: list[int], turns: list[int], items: list[tuple[list[float], list[float], int]]) -> Batch:
    """Return rollouts with these step counts, and for each item its states, weights and needs (a sum of 2^d)."""
    count = len(turns)
    columns: dict[str, Any] = {"step_turn": turns, "step_judge_failed": [0.0] * count}
    for item, (satisfied, weights, needs) in enumerate(items):
        columns[f"step_satisfied.{item}"] = satisfied
        columns[f"step_item_weight.{item}"] = weights
        columns[f"step_item_needs.{item}"] = [needs] * count
    batch = small([(0, [1] * each) for each in steps], **columns)
    return replace(recipes.CM2.reward, items=len(items))(batch)


def one_turn(states: dict[str, Value], weights: Value, needs: dict[str, int]) -> Batch:
    """Return one rollout of one turn of three steps."""
    items = [
        (states[name].tolist(), [float(weight)] * 3, needs.get(name, 0))
        for name, weight in zip(states, weights, strict=True)
    ]
    return checked([3], [0, 0, 0], items)


ABC = {"a": np.array([0.0, 1.0, 1.0]), "b": np.array([0.0, 0.0, 1.0]), "c": np.zeros(3)}


@EXAMPLES.by("rewards of the steps of a turn")
def turn(example: Example) -> Found:
    states = {name: example.values[name] for name in ABC}
    return {"turn_reward": column(one_turn(states, example.values["w"], {"b": 1}), "turn_reward", "step")[0]}


@EXAMPLES.by("an item that is satisfied together with its dependency has no reward")
def together(example: Example) -> Found:
    batch = one_turn({name: example.values[name] for name in "ab"}, np.array([0.0, 1.0]), {"b": 1})
    assert column(batch, "turn_reward", "step") == [0.0] * 3
    return {"item_b": np.array(column(batch, "turn_reward", "step"))}


@EXAMPLES.by("backfilled rewards of the first turn")
def backfilled(example: Example) -> Found:
    del example
    batch = one_turn(ABC, np.array([0.5, 0.3, 0.2]), {"b": 1})
    results = {}
    for item, name in enumerate("abc"):
        rewards = np.array(column(batch, f"item_reward.{item}", "step"))
        results[f"item_{name}"] = rewards * np.array(column(batch, f"item_eligible.{item}", "step"))
    return results


@EXAMPLES.by("step advantages")
def steps(example: Example) -> Found:
    weights = example.values["w"].tolist()
    # The turn above, and three rollouts of one step that satisfy a and b, a and c, nothing.
    others = {"a": [1.0, 1.0, 0.0], "b": [1.0, 0.0, 0.0], "c": [0.0, 1.0, 0.0]}
    items = [
        ([*ABC[name].tolist(), *others[name]], [weights[place]] * 6, 1 if name == "b" else 0)
        for place, name in enumerate("abc")
    ]
    batch = checked([3, 1, 1, 1], [0] * 6, items)
    return {"advantage": column(ChecklistRelative(items=3)(batch), level="step")[:3]}


@EXAMPLES.by("an item of the second turn, which two of four rollouts reach")
def reached(example: Example) -> Found:
    one, other = example.values["satisfied"].tolist()
    none = float("nan")
    items = [
        ([1.0, none, 1.0, none, 0.0, 0.0], [1.0] * 6, 0),  # in the first turn
        ([none, one, none, other, none, none], [1.0] * 6, 0),
    ]
    batch = checked([2, 2, 1, 1], [0, 1, 0, 1, 0, 0], items)
    paper, code = (
        np.array(column(ChecklistRelative(items=2, **options)(batch), level="step"))[[1, 3]]
        for options in ({}, {"members_at_least": 2})
    )
    return {"advantage": paper, "advantage_by_the_baseline_of_the_code": code}


def rewarded(rewards: list[list[float]]) -> Batch:
    """Return rollouts with these rewards of their turns, of one step each."""
    flat = [each for rollout in rewards for each in rollout]
    turns = [turn for rollout in rewards for turn in range(len(rollout))]
    return checked([len(rollout) for rollout in rewards], turns, [([1.0] * len(flat), flat, 0)])


@EXAMPLES.by("trajectory level with an early end")
def early(example: Example) -> Found:
    pairs = zip(*(example.values[name].tolist() for name in ("first", "second")), example.values["turns"], strict=True)
    batch = rewarded([[one, other][: int(count)] for one, other, count in pairs])
    return {"reward": column(batch, "score"), "advantage": column(recipes.CM2.advantage(batch))}


@EXAMPLES.by("turn level, five rollouts reach the second turn")
def turns(example: Example) -> Found:
    first, second = (example.values[name].tolist() for name in ("R_1", "R_2"))
    batch = rewarded([*map(list, zip(first[:5], second, strict=True)), first[5:]])
    turn_advantages = np.array(column(TURNS(batch), level="step"))
    np.testing.assert_array_equal(turn_advantages, column(CODE_TURNS(batch), level="step"))
    return {"first_turn": turn_advantages[[0, 2, 4, 6, 8, 10]], "second_turn": turn_advantages[[1, 3, 5, 7, 9]]}


@EXAMPLES.by("four are too few")
def few(example: Example) -> Found:
    four = CODE_TURNS(rewarded([[each] for each in example.values["R_2"].tolist()]))
    one = CODE_TURNS(rewarded([[float(example.values["one"])]]))
    return {"second_turn": column(four, level="step"), "group_of_one": column(one, level="step")}


@EXAMPLES.by("the judge failed for one rollout of six")
def failed(example: Example) -> Found:
    recipe = plain_reward(recipes.CM2.replace(weight=None))
    return {"advantage": advantages(recipe, [*example.values["R"], np.nan])[0]}


@EXAMPLES.by("token mean without the tool's tokens, with truncated weights")
def truncated(example: Example) -> Found:
    own_tokens = example.values["mask"] > 0
    old, sampled = example.values["old"][own_tokens], example.values["rollout"][own_tokens]
    recipe = given_advantages(recipes.CM2, kl=None).replace(weight=recipes.CM2.weight[0], old_logprob="recomputed")
    result = computed(
        recipe,
        ["loss"],
        members=[
            {
                "path": path_of(example.values["mask"]),
                "reward": float(example.values["A"]),
                "logprobs": sampled.tolist(),
            }
        ],
        columns={"token": {"recomputed_logprob": old.tolist()}},
        policy={"logprob": old.tolist()},
    )
    return {"loss": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
