"""Each equation of a paper file has a worked example that the recipe computes, or the recipe states why not."""

from __future__ import annotations

import pytest
from comparisons import Comparison, papers

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
NOT_COMPARED = {
    "a2pr",
    "ares",
    "bfs_prover_v2",
    "dart",
    "data_mind",
    "dr_po",
    "dyna_web",
    "fathom",
    "gdro_rl",
    "marft",
    "mind_omni",
    "mm_helix",
    "retrieval",
    "rl_mle",
    "trapo",
    "v0",
}
"""Paper files that their recipes were not compared with yet. This list only gets shorter."""
MOST = 16


def test_the_list_of_what_is_not_compared_only_gets_shorter() -> None:
    assert len(NOT_COMPARED) <= MOST
    assert set(papers()) >= NOT_COMPARED | NO_RECIPE


@pytest.mark.parametrize("name", sorted(set(papers()) - NO_RECIPE - NOT_COMPARED))
def test_every_equation_has_an_example_or_a_reason(name: str) -> None:
    assert Comparison.of(name).problems() == []


@pytest.mark.parametrize("name", sorted(NOT_COMPARED))
def test_what_is_listed_is_not_complete(name: str) -> None:
    assert Comparison.of(name).problems(), f"{name} is complete; remove it from NOT_COMPARED and lower MOST"


@pytest.mark.parametrize("name", sorted(NO_RECIPE))
def test_what_is_listed_has_no_recipe(name: str) -> None:
    with pytest.raises(KeyError):
        Comparison.of(name)
