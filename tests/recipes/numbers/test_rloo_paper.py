"""Worked examples of the paper of rloo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from common_examples import CommonExamples, advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes

EXAMPLES = PaperExamples("rloo")
CommonExamples(EXAMPLES, recipes.RLOO, but=["a group of one"])


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    raw = recipes.RLOO.replace(advantage=replace(recipes.RLOO.advantage, singleton="raw"))
    return {"advantage": advantages(raw, [float(example.values["R"])])[0]}


@EXAMPLES.by("tokens that another policy sampled have no ratio")
def sampled(example: Example) -> Found:
    result = single_tokens(given_advantages(recipes.RLOO), *(example.values[name] for name in ("old", "new", "A")))
    return {"loss": result["loss"], "gradient_by_logprob": result["gradient.logprob"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
