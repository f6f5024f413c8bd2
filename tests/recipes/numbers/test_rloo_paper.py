"""Worked examples of the paper of rloo, computed by the recipe."""

from __future__ import annotations

import pytest
from common_examples import CommonExamples
from paper_numbers import PaperExamples

from agentrl_core import recipes

EXAMPLES = PaperExamples("rloo")
CommonExamples(EXAMPLES, recipes.RLOO, but=["a group of one"])


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
