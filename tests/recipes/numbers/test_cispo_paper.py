"""Worked examples of the paper of cispo, computed by the recipe."""

from __future__ import annotations

import pytest
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes

EXAMPLES = PaperExamples("cispo")
TOOL = "two rollouts of two turns with tool tokens"
COMMON = CommonExamples(EXAMPLES, recipes.CISPO, but=[TOOL])
LOSSES = given_advantages(recipes.CISPO)


@EXAMPLES.by("weights, losses and gradients of four tokens")
def weights(example: Example) -> Found:
    old, new, given = (example.values[name] for name in ("old", "new", "A"))
    found = single_tokens(LOSSES, old, new, given)
    slope = found["gradient.logprob"]
    return {"loss": found["loss"], "gradient_by_logprob": slope, "weight": -slope * len(given) / given}


@EXAMPLES.by("the second step still moves a token beyond the range")
def beyond(example: Example) -> Found:
    found = single_tokens(LOSSES, *(example.values[name] for name in ("old", "second", "A")))
    return {"gradient_by_logprob": found["gradient.logprob"]}


@EXAMPLES.by(TOOL)
def tool(example: Example) -> Found:
    found = COMMON.tool_tokens(example)
    del found["loss"]  # the file's is that of a ratio of 1; this loss is of log-probs, with the same gradient
    return found


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
