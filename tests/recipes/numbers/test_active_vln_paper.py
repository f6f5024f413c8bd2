"""Worked examples of the paper of active_vln, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples
from riddles import RIGHT, WRONG, in_turn, solve

from agentrl_core import recipes

EXAMPLES = PaperExamples("active_vln")
COMMON = CommonExamples(EXAMPLES, recipes.ACTIVE_VLN, but={"a group of one"})
LOSSES = given_advantages(recipes.ACTIVE_VLN)
ANEW = recipes.ACTIVE_VLN.rollout


@EXAMPLES.by("budgets")
def budgets(example: Example) -> Found:
    both = zip(example.values["remaining"].astype(int), example.values["prefix"].astype(int), strict=True)
    steps, turns = zip(
        *(ANEW.budgets(remaining, given=prefix_length) for remaining, prefix_length in both), strict=True
    )
    return {"step_budget": np.array(steps), "turn_budget": np.array(turns)}


def rounds(*successes: Value) -> int:
    """Return how often a group with these successes in successive rounds is rolled out, up to 6 times."""
    answers = [RIGHT if solved else WRONG for each in successes for solved in each]
    program = replace(ANEW, attempts=5)
    run = solve(recipes.ACTIVE_VLN.replace(rollout=program), in_turn(*answers), group_size=len(successes[0]))
    return len(run.rows) // len(successes[0])


@EXAMPLES.by("which groups are rolled out again")
def again(example: Example) -> Found:
    given = example.values
    solved = np.ones(4)
    result = rounds(given["c"], given["c_second"], given["c_third"], solved)
    assert ANEW.attempts == 2  # from the paper: as many as the third group needs
    return {
        "again": np.array([rounds(given[name], solved) > 1 for name in "abc"]),
        "again_after_second": np.array(result > 2),
        "again_after_third": np.array(result > 3),
    }


@EXAMPLES.by("a warm-up of 50 steps")
def warm_up(example: Example) -> Found:
    """The number of steps before the cut, measured on an episode that is 10^9 times as long."""
    program, long = replace(ANEW, warm_up=int(example.values["W"])), 10**9
    least, most = program.at_least, int(example.values["N"])
    remaining_steps = [program.left(least + (most - least) * long, int(k) - 1) for k in example.values["k"]]
    step_counts = np.array([least + (each - least) / long for each in remaining_steps])
    assert [program.left(most, int(k) - 1) for k in example.values["k"]] == np.floor(step_counts).tolist()
    return {"steps_before_cutting": step_counts}


@EXAMPLES.by("a group of four and one of three")
def groups(example: Example) -> Found:
    one, other = advantages(recipes.ACTIVE_VLN, example.values["R"], example.values["S"])
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("two episodes with observations and a prefix")
def masked(example: Example) -> Found:
    return COMMON.tool_tokens(example)


@EXAMPLES.by("tokens that another policy sampled, and a second optimizer step")
def steps(example: Example) -> Found:
    given = example.values
    old = np.full(len(given["A"]), -1.0)
    first, second = (single_tokens(LOSSES, old, old + away, given["A"]) for away in (np.zeros(len(old)), given["d"]))
    return {
        "first": first["loss"],
        "second": second["loss"],
        "has_gradient": second["gradient.logprob"] != 0,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
