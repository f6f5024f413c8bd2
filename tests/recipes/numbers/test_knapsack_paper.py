"""Worked examples of the paper of knapsack, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples
from pools import Story

from agentrl_core import recipes

EXAMPLES = PaperExamples("knapsack")
TRACK, ALLOCATOR = recipes.KNAPSACK.select.track, recipes.KNAPSACK.select.count


def numbers(rates: Sequence[float], total: int, **options: Any) -> Value:
    """Return rollouts of tasks with these success rates."""
    return replace(ALLOCATOR, **options).counts({}, {"estimate": np.array(rates)}, total)


def rates_after(*visits: Sequence[float]) -> list[float]:
    """Return the success rate of a task after each visit."""
    state, story, results = TRACK.initial_state(), Story(), []
    for iteration, outcomes in enumerate(visits):
        state = TRACK.next(state, story.visits(iteration, {0: outcomes}))
        results.append(float(TRACK.estimate(state, story.candidates([0], iteration + 1))[0]))
    return results


@EXAMPLES.by("ten rollouts for two prompts")
def ten(example: Example) -> Found:
    given = example.values
    assert ALLOCATOR.low == given["N"][0]
    for_a, for_b = numbers([float(given["a"]), float(given["b"])], 10)
    return {"number_for_a": for_a, "number_for_b": for_b}


@EXAMPLES.by("a solved prompt, an unsolved one and one in between")
def fallback(example: Example) -> Found:
    given = example.values
    total = int(given["N_total"])
    solved, unsolved, middle = numbers(given["p"].tolist(), total, low=int(given["N_low"]), high=int(given["N_up"]))
    return {"solved": solved, "middle": middle, "unsolved": unsolved, "unspent": total - solved - middle - unsolved}


@EXAMPLES.by("rates of a second epoch")
def rates(example: Example) -> Found:
    """The recipe has the rate of the last visit."""
    visits = []
    for epoch in ("first", "second"):
        solved, count = (int(example.values[f"{epoch}_{name}"]) for name in ("successes", "N"))
        visits.append([1.0] * solved + [0.0] * (count - solved))
    second, third = rates_after(*visits)
    return {"rate_in_epoch_2": second, "rate_in_epoch_3": third}


@EXAMPLES.by("advantages in groups of two, five and thirty-two")
def training(example: Example) -> Found:
    given = example.values
    large = [1.0, *[0.0] * (int(given["n"]) - 1)]
    small_group, large_group, clipped = advantages(recipes.KNAPSACK, given["R"], given["S"], large)
    free = recipes.KNAPSACK.replace(advantage=replace(recipes.KNAPSACK.advantage, at_most=None))
    (unclipped,) = advantages(free, large)
    return {
        "advantage_a": small_group,
        "advantage_b": large_group,
        "advantage_of_the_success_of_32": unclipped[0],
        "after_the_clip": clipped[0],
    }


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    outcomes = [*example.values["R"].tolist(), float("nan")]
    return {"advantage": advantages(recipes.KNAPSACK, outcomes)[0], "rate": rates_after(outcomes)[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_the_information_of_a_task_counts() -> None:
    """At rate 0.5 the eighth rollout gains 0.125 * 2 * 0.5^8 = 0.00098, at 0.9 the third 0.009 * 0.09 = 0.00081."""
    assert numbers([0.5, 0.9], 10).tolist() == [8, 2]
