"""Worked examples of the paper of retrieval, computed by the recipe."""

from __future__ import annotations

import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("retrieval")


@EXAMPLES.by("retrieved tokens are context")
def context(example: Example) -> Found:
    assert example.values["mask"].tolist() == [0, 0, 0, 1, 1]
    member = {"path": "1 2 3 | 4 5", "reward": float(example.values["A"])}
    recipe = recipes.RETRIEVAL.replace(advantage=GroupRelative(center="none", scale="none"))
    result = computed(recipe, ["loss", "gradient.logprob"], members=[member])
    return {"loss": result["loss"], "token_weight": -result["gradient.logprob"][:1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
