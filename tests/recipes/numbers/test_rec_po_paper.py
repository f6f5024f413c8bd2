"""Worked examples of the paper of rec_po, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("rec_po")


def recommended(
    recipe: Recipe, rewards: Sequence[float], similarity: Sequence[float], names: Sequence[str], **more: Any
) -> Mapping[str, Value]:
    """Return numbers of rollouts that reason and then recommend.

    Args:
        recipe: the recipe that computes them.
        rewards: rewards of the environment; nan: unknown.
        similarity: similarity of the targets.
        names: names of the numbers.
        more: options of the iteration; `reasoning` is the number of reasoning tokens of each, 1 by default.
    """
    lengths = more.pop("reasoning", [1] * len(rewards))
    members = [
        {
            "path": f"1 | 3*{length} ~ 9 | 4",
            "steps": [{"facts": {"recommends": place}} for place in (0, 1)],
            "rewards": {"similarity": close},
            **({} if np.isnan(reward) else {"reward": reward}),
        }
        for length, reward, close in zip(lengths, rewards, similarity, strict=True)
    ]
    return computed(recipe, names, members=members, **more)


@EXAMPLES.by("four rollouts of one user")
def four(example: Example) -> Found:
    given = example.values
    best = recipes.REC_PO.replace(weight=replace(recipes.REC_PO.weight, count=2))
    top_1, other = (
        recommended(recipe, given["ndcg"], given["q"], ["draw.score", "draw.advantage", "step.weight"])
        for recipe in (recipes.REC_PO, best)
    )
    assert np.all(top_1["step.weight"][::2] == 1)  # reasoning
    return {
        "reward": top_1["draw.score"],
        "advantage": top_1["draw.advantage"],
        "item_trained_top_1": top_1["step.weight"][1::2],
        "item_trained_top_2": other["step.weight"][1::2],
    }


@EXAMPLES.by("objective of the paper, two rollouts of unequal length")
def objective(example: Example) -> Found:
    given = example.values
    lengths = given["n"].astype(int).tolist()
    logprobs = np.full(sum(lengths) + 2, -1.0)
    logprobs[lengths[0]] += np.log(given["r_item"])
    result = recommended(
        recipes.REC_PO.replace(reward=OutcomeScore(), advantage=GroupRelative(center="none", scale="none")),
        given["A"],
        [0.0, 0.0],
        ["loss", "gradient.logprob"],
        reasoning=lengths,
        policy={"logprob": logprobs.tolist()},
    )
    gradient = result["gradient.logprob"]
    assert gradient[lengths[0]] != 0
    assert gradient[-1] == 0
    return {"objective": -result["loss"], "token_weight": -gradient[:1] / given["A"][0]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    rewards = [*example.values["R"].tolist(), np.nan]
    recipe = recipes.REC_PO.replace(reward=OutcomeScore())
    result = recommended(recipe, rewards, [0.0] * 4, ["draw.advantage", "step.weight"])
    weights = result["step.weight"][1::2]
    assert result["draw.advantage"][3] == weights[3] == 0
    return {"advantage": np.append(result["draw.advantage"][:3], np.nan), "item_trained": weights[:3]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
