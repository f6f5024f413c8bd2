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
"""Paper files of systems without a recipe: their formulas are those of other recipes, or still to be built."""
MOST = 20
NOT_COMPUTED: set[str] = set()
"""Systems of whose equations the recipe computes none, each with its reason."""
WAITING = {name for name in papers() if not (NUMBERS / f"test_{name}_paper.py").is_file()} - NO_RECIPE - NOT_COMPUTED
"""Paper files whose recipes have not been compared with them."""
MOST_WAITING = 0


def test_the_list_of_systems_without_a_recipe_only_gets_shorter() -> None:
    assert len(NO_RECIPE) <= MOST
    assert set(papers()) >= NO_RECIPE


def test_the_paper_files_that_wait_for_a_comparison_only_get_fewer() -> None:
    assert len(WAITING) <= MOST_WAITING, sorted(WAITING)


@pytest.mark.parametrize("name", sorted(set(papers()) - NO_RECIPE - WAITING))
def test_every_equation_has_an_example_or_a_reason(name: str) -> None:
    assert Comparison.of(name).problems() == []


@pytest.mark.parametrize("name", sorted(NO_RECIPE))
def test_what_is_listed_has_no_recipe(name: str) -> None:
    with pytest.raises(KeyError):
        Comparison.of(name)
