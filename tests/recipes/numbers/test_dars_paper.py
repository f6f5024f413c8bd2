"""Worked examples of the paper of dars, computed by the recipe."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.rollout import RoundResult

EXAMPLES = PaperExamples("dars")
UNFILTERED = recipes.DARS.replace(weight=None)


def extra_rollouts(first: Sequence[float], **options: Any) -> int:
    """Return the number of extra rollouts of a task after a first round with these outcomes."""
    program = replace(recipes.DARS.rollout, **options)
    spec = asyncio.run(program.next_round(None, [RoundResult([None] * len(first), np.array(first, float))]))
    return spec.total(0) if spec else 0


@EXAMPLES.by("extra rollouts by both schedules, N = 8")
def schedules(example: Example) -> Found:
    rounds = [[1.0] * solved + [0.0] * (8 - solved) for solved in range(4)]
    hard = {"kind": "hard", "at_most": 64}
    assert [extra_rollouts([1.0] * solved + [0.0] * (8 - solved)) for solved in range(4, 9)] == [0] * 5
    for name, options in (("equal", {"scale": "std"}), ("hardness", {**hard, "scale": "std"})):
        expected = np.ceil(example.expect[f"{name}_with_std_before_rounding"])
        np.testing.assert_array_equal([extra_rollouts(each, **options) for each in rounds], expected)
    return {
        "equal_n_max_32": [extra_rollouts(each) for each in rounds],
        "hardness_n_max_64": [extra_rollouts(each, **hard) for each in rounds],
    }


@EXAMPLES.by("merged groups of unequal size")
def merged(example: Example) -> Found:
    given = example.values
    groups = [np.concatenate([given["first"], given["second"]]), given["other"], given["solved"]]
    first, other, _ = advantages(UNFILTERED, *groups)
    members = [
        {"group": name, "path": "1 | 3", "reward": float(right), "success": bool(right)}
        for name, group in zip("abc", groups, strict=True)
        for right in group
    ]
    kept = computed(recipes.DARS, ["draw.keep"], members=members)["draw.keep"]
    return {"advantage_of_merged": first, "advantage_of_other": other, "kept": kept[[0, 7, 11]]}


@EXAMPLES.by("a group of one beside larger groups")
def alone(example: Example) -> Found:
    return {"advantage": advantages(UNFILTERED, [1.0, 0.0], example.values["R"])[1]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    scores = [*example.values["R"], np.nan]
    assert extra_rollouts(scores) == np.ceil(example.expect["extra_before_rounding"])
    return {"advantage_without_second_stage": advantages(UNFILTERED, scores)[0]}


@EXAMPLES.by("loss of two responses of three and one tokens, two epochs")
def epochs(example: Example) -> Found:
    """The recipe's mean over two draws is half of the source's sum."""
    assert recipes.DARS.epochs == 2
    given = example.values
    recipe = given_advantages(recipes.DARS, constant=float(given["L"]))

    def compute(now: Value) -> Found:
        return dict(
            computed(
                recipe,
                ["loss", "gradient.logprob"],
                members=answers([3, 1], given["A"][[0, 3]].tolist()),
                policy={"logprob": now.tolist()},
            )
        )

    second = compute(given["second"])
    return {
        "first_loss": 2 * compute(given["old"])["loss"],
        "second_loss": 2 * second["loss"],
        "second_has_gradient": second["gradient.logprob"] != 0,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
