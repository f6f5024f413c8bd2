"""Worked examples of the paper of remax, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("remax")
TOOL = "two rollouts of two turns with tool tokens"
COMMON = CommonExamples(EXAMPLES, recipes.REMAX, but=[TOOL])
UNDISCOUNTED = recipes.REMAX.replace(advantage=replace(recipes.REMAX.advantage, gamma=1.0, kl_coefficient=0.0))


def answered(group: str, rewards: Any, greedy: Any) -> list[dict[str, Any]]:
    """Return one-token answers and the greedy answer of the same task."""
    scores = [*np.atleast_1d(rewards).tolist(), float(greedy)]
    return [
        {"group": group, "path": "1 | 3", "reward": score, "facts": {"greedy": int(place == len(scores) - 1)}}
        for place, score in enumerate(scores)
    ]


@EXAMPLES.by("advantages against the greedy reward")
def greedy(example: Example) -> Found:
    given = example.values
    members = [*answered("a", given["R_a"], given["b_a"]), *answered("b", given["R_b"], given["b_b"])]
    advantages = computed(UNDISCOUNTED, ["token.advantage"], members=members)["token.advantage"]
    assert not advantages[[2, 4]].any(), "the greedy answers are not trained"
    return {"advantage_a": advantages[:2], "advantage_b": advantages[3:4]}


@EXAMPLES.by(TOOL)
def tool(example: Example) -> Found:
    result = COMMON.tool_tokens(example, given_advantages(recipes.REMAX, aggregate="constant", constant=1.0))
    del result["loss"]  # the file's loss is at a ratio of 1; this one is of log-probs, with the same gradient
    return result


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
