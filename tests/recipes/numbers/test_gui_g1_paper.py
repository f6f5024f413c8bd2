"""Worked examples of the paper of gui_g1, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples, advantages, given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("gui_g1")
RECIPE = recipes.GUI_G1
PLAIN = plain_reward(RECIPE).replace(weight=None)
CommonExamples(EXAMPLES, RECIPE.replace(weight=None))


@EXAMPLES.by("rewards of three boxes")
def boxes(example: Example) -> Found:
    given, edges = example.values, ("x1", "y1", "x2", "y2")
    screen = {"image_width": float(given["W"]), "image_height": float(given["H"]), "task_weight": 1.0}
    screen |= {f"target_{edge}": value for edge, value in zip(edges, given["target"].tolist(), strict=True)}
    boxes = np.asarray(given["p"]).tolist()
    members = [
        {**answer, "facts": screen | {f"box_{edge}": value for edge, value in zip(edges, box, strict=True)}}
        for answer, box in zip(answers([1] * len(boxes), [0.0] * len(boxes)), boxes, strict=True)
    ]
    result = computed(RECIPE, ["draw.score", "draw.advantage"], members=members)
    return {"reward": result["draw.score"], "advantage": result["draw.advantage"]}


@EXAMPLES.by("an answer that cannot be parsed")
def unparsed(example: Example) -> Found:
    return {"advantage": advantages(PLAIN, example.values["R"])[0]}


@EXAMPLES.by("two samples of unlike weight and length")
def weighted(example: Example) -> Found:
    given, recipe = example.values, given_advantages(RECIPE).replace(weight=RECIPE.weight)
    lengths = given["n"].astype(int).tolist()
    members = [
        {**answer, "facts": {"task_weight": rate}}
        for answer, rate in zip(answers(lengths, given["A"].tolist()), given["rate"].tolist(), strict=True)
    ]
    result = computed(recipe, ["loss", "gradient.logprob"], members=members)
    return {
        "per_response": np.array([computed(recipe, ["loss"], members=[each])["loss"][0] for each in members]),
        "loss": result["loss"],
        "token_weight": -result["gradient.logprob"][[0, lengths[0]]] / given["A"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
