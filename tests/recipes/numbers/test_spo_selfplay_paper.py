"""Worked examples of the paper of spo_selfplay, computed by the recipe."""

from __future__ import annotations

import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("spo_selfplay")


def compared(*rows: Value) -> Found:
    """Return score and advantage of each member, from its probabilities to beat the others, in their order."""
    members = []
    for place, row in enumerate(rows):
        others = [number for number in range(len(rows)) if number != place]
        preferences = {f"preference.{number}": float(each) for number, each in zip(others, row, strict=True)}
        members.append({"path": "1 | 3", "facts": {f"preference.{place}": 0.5, **preferences}})
    return dict(computed(recipes.SPO_SELFPLAY, ["draw.score", "draw.advantage"], members=members))


@EXAMPLES.by("four trajectories of several turns, a failed one among them")
def four(example: Example) -> Found:
    result = compared(*(example.values[f"row_{name}"] for name in "abcd"))
    return {
        "reward": result["draw.score"],
        "mean_reward": result["draw.score"].mean(),
        "advantage": result["draw.advantage"],
    }


@EXAMPLES.by("a cycle of preferences")
def cycle(example: Example) -> Found:
    rows = [example.values[name] for name in ("rock", "paper", "scissors")]
    return {"reward_in_a_group_of_one_each": compared(*rows)["draw.score"]}


@EXAMPLES.by("groups of three and of two")
def groups(example: Example) -> Found:
    given = example.values
    one, other = compared(given["a"], given["b"], given["c"]), compared([given["d"]], [1 - given["d"]])
    return {
        "reward_a": one["draw.score"],
        "reward_b": other["draw.score"],
        "advantage_a": one["draw.advantage"],
        "advantage_b": other["draw.advantage"],
    }


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    assert len(example.values["r"]) == 1
    result = compared([])
    return {"reward": result["draw.score"], "advantage": result["draw.advantage"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
