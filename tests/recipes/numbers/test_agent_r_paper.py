"""Worked examples of the paper of agent_r, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, WRONG, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.recipes.agent_r import _THOUGHTS

EXAMPLES = PaperExamples("agent_r")


@EXAMPLES.by("pairs of four leaves")
def pairs(example: Example) -> Found:
    program = replace(recipes.AGENT_R.rollout, gap=float(example.values["beta"]))
    chosen_pairs = program.pairs(example.values["V"])
    return {"pair": [each in chosen_pairs for each in combinations(range(4), 2)], "number_of_pairs": len(chosen_pairs)}


@EXAMPLES.by("a leaf without value, and a tree of one leaf (convention)")
def unscored(example: Example) -> Found:
    program = recipes.AGENT_R.rollout
    values = np.array([*example.values["V"], np.nan])
    return {"pairs": len(program.pairs(values)), "pairs_of_one_leaf": len(program.pairs(values[:1]))}


@EXAMPLES.by("splice of a bad path a b c d and a good path a b e f g")
def splice(example: Example) -> Found:
    def speak(context: str, request: Request) -> str:
        if "Judge each step" in context:
            return "1: good\n2: uncertain\n3: bad\n4: bad"
        turn = context.count("go on")
        third = "east" if request.seed % 2 else "west"
        good = "east" in context
        return ["ask", "begin", third, "find" if good else WRONG, RIGHT][min(turn, 4)]

    for seed in range(20):
        run = solve(recipes.AGENT_R, speak, group_size=2, seed=seed)
        if len(run.drawn) == 3:
            break
    actions = [row.actions for row in run.drawn]
    good = actions.index(["ask", "begin", "east", "find", RIGHT])
    bad = actions.index(["ask", "begin", "west", WRONG])
    [revised] = [row for place, row in enumerate(run.drawn) if place not in (good, bad)]
    assert revised.actions[4:] == ["east", "find", RIGHT]
    assert run.drawn[bad].trained == ""
    prefix = next(place for place, action in enumerate(revised.actions) if action in _THOUGHTS)
    masks = [[action in row.trained for action in row.actions] for row in (revised, run.drawn[good])]
    loss = computed(
        recipes.AGENT_R,
        ["loss"],
        members=[{"path": "1 | 3" + " ~ 9 | 3" * 6, "trainable": masks[0], "reward": 1}],
        policy={"logprob": example.values["logp"].tolist()},
    )["loss"]
    return {
        "steps_of_the_prefix": prefix,
        "mask_of_the_revision": masks[0],
        "mask_of_the_good_trajectory": masks[1],
        "loss": loss,
    }


def test_the_good_path_continues_after_the_shared_prefix() -> None:
    """Both begin with the same two steps, the first of which is bad: the good one's second step comes after it."""

    def speak(context: str, request: Request) -> str:
        if "Judge each step" in context:
            return "1: bad\n2: good\n3: good"
        last = RIGHT if request.seed % 2 else WRONG
        return ["ask", "begin", last][min(context.count("go on"), 2)]

    for seed in range(20):
        run = solve(recipes.AGENT_R, speak, group_size=2, seed=seed)
        if len(run.drawn) == 3:
            break
    [revised] = [row.actions for row in run.drawn if len(row.actions) == 4]
    assert (revised[0], revised[2:]) == ("ask", ["begin", RIGHT])


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
