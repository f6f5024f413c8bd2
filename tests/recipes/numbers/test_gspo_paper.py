"""Worked examples of the paper of gspo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples, given_advantages, path_of
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("gspo")
CommonExamples(EXAMPLES, recipes.GSPO)
LOSSES = given_advantages(recipes.GSPO)


@EXAMPLES.by("ratios of responses, tool tokens out")
def ratios(example: Example) -> Found:
    given = example.values
    own_tokens = given["m_a"] > 0
    logprobs = np.concatenate([given["d_a"][own_tokens], given["d_b"]]) - 1.0
    members = [
        {"path": path_of(given["m_a"]), "reward": given["A"][0]},
        {"path": path_of(np.ones(len(given["d_b"]))), "reward": given["A"][1]},
    ]

    def compute(recipe: Recipe) -> Found:
        names = ["loss", "gradient.logprob"]
        return dict(computed(recipe, names, members=members, policy={"logprob": logprobs.tolist()}))

    clipped, free = compute(LOSSES), compute(LOSSES.replace(loss=given_advantages(recipes.GSPO, clip=None).loss))
    count = int(own_tokens.sum())
    return {
        "objective": -clipped["loss"],
        "gradient_of_a_token_of_b": clipped["gradient.logprob"][-1:],
        "ratio_a": -2 * count * free["gradient.logprob"][:1],
        "ratio_b": 2 * len(given["d_b"]) * free["gradient.logprob"][-1:],
    }


@EXAMPLES.by("GSPO-token has the same value")
def by_token(example: Example) -> Found:
    count = len(example.values["A"])
    logprobs = [float(np.log(example.values["s"])) - 1.0] * count
    result = computed(LOSSES, ["loss"], members=answers([count], [1]), policy={"logprob": logprobs})
    return {"objective": -result["loss"]}


@EXAMPLES.by("a response that clips at the second of four steps")
def steps(example: Example) -> Found:
    given, objectives, moves = example.values, {}, []
    for name in ("first", "second"):
        policy = {"logprob": (given[name] - 1.0).tolist()}
        result = computed(LOSSES, ["loss", "gradient.logprob"], members=answers([2], [1]), policy=policy)
        objectives[name] = -result["loss"]
        moves.append(result["gradient.logprob"].any())
    return {**objectives, "has_gradient": np.array(moves)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
