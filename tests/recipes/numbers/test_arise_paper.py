"""Worked examples of the paper of arise, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipes.arise import Skills
from agentrl_core.select import DynamicSampling

EXAMPLES = PaperExamples("arise")
CommonExamples(EXAMPLES, recipes.ARISE)
SKILLS = recipes.ARISE.rollout
assert isinstance(SKILLS, Skills)


def library(cache: Sequence[float], reservoir: Sequence[float] = ()) -> dict[str, Any]:
    """Return a library of unused skills with these utilities; each utility names its skill."""

    def skills(utilities: Sequence[float]) -> list[dict[str, Any]]:
        return [{"text": str(utility), "utility": utility, "used": 0} for utility in utilities]

    return {"cache": skills(cache), "reservoir": skills(reservoir)}


def utilities(state: dict[str, Any], name: str = "cache") -> list[float]:
    return [skill["utility"] for skill in state[name]]


@EXAMPLES.by("scores of three skills of unequal length")
def scores(example: Example) -> Found:
    shares = SKILLS.shares(example.values["log_p"], example.values["length"])
    return {"probability": shares, "passes": float(SKILLS.passes(shares))}


@EXAMPLES.by("ten skills alike do not pass, one alone does")
def alike(example: Example) -> Found:
    groups = [np.full(int(count), -2.0) for count in example.values["n"]]
    return {"passes": [float(SKILLS.passes(SKILLS.shares(sums, np.ones(len(sums))))) for sums in groups]}


def scored_group(right: Value, used: Value) -> Found:
    members = [
        {"path": "1 | 3", "reward": won, "success": bool(won), "facts": {"skill_used": skill_used}}
        for won, skill_used in zip(right.tolist(), used.tolist(), strict=True)
    ]
    return dict(computed(recipes.ARISE, ["draw.score", "draw.advantage"], members=members))


@EXAMPLES.by("a group of five in which three rollouts used a skill")
def five(example: Example) -> Found:
    right = example.values["right"]
    result = scored_group(right, example.values["used"])
    return {
        "reward": result["draw.score"],
        "advantage": result["draw.advantage"],
        "advantage_warm_up": scored_group(right, np.zeros(len(right)))["draw.advantage"],
    }


@EXAMPLES.by("a whole group with a skill has the advantages of a binary reward")
def all_right(example: Example) -> Found:
    right = example.values["right"]
    return {"advantage": scored_group(right, np.ones(len(right)))["draw.advantage"]}


@EXAMPLES.by("worth of four new skills")
def worth(example: Example) -> Found:
    pairs = zip(example.values["any_right"], example.values["verified"], strict=True)
    return {"worth": [SKILLS.worth(solved=bool(solved), tried=bool(tried)) for solved, tried in pairs]}


@EXAMPLES.by("utilities over three steps")
def three_steps(example: Example) -> Found:
    begin, (first, last) = float(example.values["u"]), example.values["R"].tolist()
    state, results = library([begin, 0.1]), []
    for text, reward in ((str(begin), first), ("0.1", 1.0), (str(begin), last)):
        state = SKILLS.maintained(state, [[text, reward]], [])
        results.append(utilities(state)[0])
    return {"utility": results}


@EXAMPLES.by("a full cache takes a new skill and exchanges one")
def exchange(example: Example) -> Found:
    cache, new = example.values["cache"].tolist(), float(example.values["new"])
    alone = Skills(cache=len(cache)).maintained(library(cache), [], [["new", new]])
    state = Skills(cache=len(cache)).maintained(
        library(cache, [float(example.values["reservoir_best"])]), [], [["new", new]]
    )
    return {
        "after_evict": utilities(alone),
        "exchanges": float(new in utilities(state, "reservoir")),
        "cache": utilities(state),
    }


@EXAMPLES.by("deletion from a reservoir of five and of thirty")
def deletion(example: Example) -> Found:
    """Of thirty different utilities, the number below that of a place equals the place."""

    def deleted(reservoir: list[float]) -> int:
        state = SKILLS.maintained(library([9.0], reservoir), [], [])
        return len(reservoir) - len(state["reservoir"])

    return {
        "deleted_of_five": deleted(example.values["u"].tolist()),
        "place_of_thirty": deleted([place / 8 for place in range(30)]),
    }


def test_groups_without_a_difference_are_replaced() -> None:
    admit = recipes.ARISE.admit
    assert isinstance(admit, DynamicSampling)
    groups = np.array([0, 0, 1, 1], np.uint32)
    assert admit(np.array([2.0, 2.0, 2.0, 0.0]), groups).tolist() == [False, True]


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
