"""Worked examples of the paper of fun_rl, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("fun_rl")
RELATIVE, BONUS = recipes.FUN_RL.chain("advantage")
COMPARED = recipes.FUN_RL.replace(advantage=RELATIVE)
CommonExamples(EXAMPLES, COMPARED, but=["a group of one", "one rollout of four has no score (convention)"])


def with_bonus(rewards: Sequence[float], entropies: Value, thought: Value) -> Value:
    """Return advantages of the tokens of each rollout of a group, all of the same entropies and thoughts."""
    columns = {"entropy": np.tile(entropies, len(rewards)).tolist(), "thought": np.tile(thought, len(rewards)).tolist()}
    members = answers([len(entropies)] * len(rewards), rewards)
    result = computed(recipes.FUN_RL, ["token.advantage"], members=members, columns={"token": columns})
    return result["token.advantage"].reshape(len(rewards), -1)


@EXAMPLES.by("bonus on the thought of a success and of a failure")
def bonus(example: Example) -> Found:
    """The example's advantages come from two successes and three failures; calls have entropy 3."""
    entropies = np.append(example.values["H"], [3.0, 3.0])
    result = with_bonus([1, 0, 0, 1, 0], entropies, example.values["thought"])
    return {"success": result[0], "failure": result[1]}


@EXAMPLES.by("no difference, no bonus")
def equal(example: Example) -> Found:
    given = example.values
    return {"advantage": with_bonus(given["r"].tolist(), np.full(1, given["H"]), np.ones(1))}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    given = example.values
    return {"advantage": with_bonus(given["r"].tolist(), np.full(1, given["H"]), np.ones(1))}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage_n_minus_1": advantages(COMPARED, [*example.values["R"], np.nan])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
