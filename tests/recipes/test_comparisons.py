"""Each equation of a paper file has a worked example that the recipe computes, or the recipe states why not."""

from __future__ import annotations

import pytest
from comparisons import NUMBERS, Comparison, papers

NO_RECIPE = {
    "agent_gym_rl",
    "agent_lightning",
    "agent_q",
    "archer",
    "archer_dual",
    "deepswe",
    "kimi_k1_5",
    "l0",
    "mem_agent",
    "mt_grpo",
    "rafa",
    "ragen",
    "retool",
    "search_r1",
    "sky_rl",
    "toolrl",
    "torl",
    "vapo",
    "vineppo",
    "webrl",
}
"""Paper files of systems without a recipe: other recipes have their formulas, or they are still to be built."""
COUNT = 20
"""The length of this list, which may only decrease."""
COMPARED = sorted(set(papers()) - NO_RECIPE)


def test_the_list_of_systems_without_a_recipe_only_gets_shorter() -> None:
    assert len(NO_RECIPE) == COUNT
    assert set(papers()) >= NO_RECIPE


def test_every_other_paper_file_has_a_comparison() -> None:
    assert [name for name in COMPARED if not (NUMBERS / f"test_{name}_paper.py").is_file()] == []


@pytest.mark.parametrize("name", COMPARED)
def test_every_equation_has_an_example_or_a_reason(name: str) -> None:
    assert Comparison.of(name).problems() == []


@pytest.mark.parametrize("name", sorted(NO_RECIPE))
def test_papers_on_the_list_have_no_recipe(name: str) -> None:
    with pytest.raises(KeyError):
        Comparison.of(name)
