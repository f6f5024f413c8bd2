"""Worked examples of the paper of shorter_better, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from common_examples import CommonExamples
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("shorter_better")
GROUPS, UNSCORED = "groups of five and of three", "one rollout of four has no score (convention)"
COMMON = CommonExamples(EXAMPLES, recipes.SHORTER_BETTER, but=[GROUPS, UNSCORED, "a group of one"])


def answered(lengths: Sequence[float], right: Sequence[float], group: str = "a") -> list[dict[str, Any]]:
    """Return answers of these lengths; the right ones succeed."""
    members = answers([int(length) for length in lengths], [float(each) for each in right], group=group)
    return [{**member, "success": bool(member["reward"])} for member in members]


def credited(members: list[dict[str, Any]], recipe: Recipe = recipes.SHORTER_BETTER) -> Found:
    count = sum(int(member["path"].partition("*")[2] or 1) for member in members)
    return dict(
        computed(
            recipe,
            ["draw.score", "draw.advantage"],
            members=members,
            columns={"token": {"reference_logprob": [-1.0] * count}},
        )
    )


@EXAMPLES.by(GROUPS)
def groups(example: Example) -> Found:
    given = example.values
    result = credited(answered(given["l"], given["c"]) + answered(given["l_b"], given["c_b"], "b"))
    return {
        "reward_a": result["draw.score"][:5],
        "advantage_a": result["draw.advantage"][:5],
        "reward_b": result["draw.score"][5:],
        "advantage_b": result["draw.advantage"][5:],
    }


@EXAMPLES.by("a long right response may lose to a short wrong one")
def long(example: Example) -> Found:
    """A right answer of the optimal length is added."""
    lengths, right = np.append(example.values["l"], example.values["sol"]), np.append(example.values["c"], 1.0)
    return {"reward": credited(answered(lengths, right))["draw.score"][:2]}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    advantage = replace(recipes.SHORTER_BETTER.advantage, singleton="raw")
    members = answered([float(example.values["l"])], [float(example.values["c"])])
    result = credited(members, recipes.SHORTER_BETTER.replace(advantage=advantage))
    return {"reward": result["draw.score"], "advantage": result["draw.advantage"]}


@EXAMPLES.by(UNSCORED)
def unscored(example: Example) -> Found:
    members = [*answered(example.values["l"], example.values["c"]), {"group": "a", "path": "1 | 3*100"}]
    result = credited(members)
    assert result["draw.advantage"][3] == 0
    return {"reward": result["draw.score"][:3], "advantage": [*result["draw.advantage"][:3], np.nan]}


@EXAMPLES.by("length of a response with tool tokens")
def tool_tokens(example: Example) -> Found:
    return COMMON.tool_tokens(example)


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    assert recipes.SHORTER_BETTER.minibatches == 8
    return COMMON.second_step(example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
