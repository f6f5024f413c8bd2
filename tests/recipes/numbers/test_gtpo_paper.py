"""Worked examples of the paper of gtpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("gtpo")
*_, GATE = recipes.GTPO.chain("advantage")
CommonExamples(
    EXAMPLES,
    recipes.GTPO.replace(advantage=recipes.GTPO.chain("advantage")[0], weight=None),
    but=["tokens that another policy sampled", "the second optimizer step of a batch clips"],
)


def pair(good: str, bad: str, rewards: tuple[float, float] = (1, 0), **options: Any) -> Found:
    """Return weights and gradients of a good and of a bad completion."""
    weight = replace(recipes.GTPO.weight, **options)
    members = [
        {"path": f"1 | {words}", "reward": reward, "entropies": [0.0] * len(words.split())}
        for words, reward in zip((good, bad), rewards, strict=True)
    ]
    recipe = given_advantages(recipes.GTPO).replace(weight=weight)
    return dict(computed(recipe, ["token.weight", "gradient.logprob"], members=members))


@EXAMPLES.by("weights of two completions with a shared start and end")
def shared(example: Example) -> Found:
    del example
    weights = pair("11 12 13 20", "11 14 15 16 20")["token.weight"]
    return {"lambda_positive": weights[:4], "lambda_negative": weights[4:], "conflicts": np.sum(weights[:4] != 1)}


@EXAMPLES.by("identical completions of unlike reward")
def identical(example: Example) -> Found:
    del example
    weights = pair("11 12", "11 12")["token.weight"]
    return {"lambda_positive": weights[:2], "lambda_negative": weights[2:]}


def shaped(gate: Any, rewards: Value, entropies: Value) -> Value:
    *links, _ = recipes.GTPO.chain("advantage")
    members = [
        {"path": "1 | 3", "reward": reward, "entropies": [entropy]}
        for reward, entropy in zip(rewards.tolist(), entropies.tolist(), strict=True)
    ]
    return computed(recipes.GTPO.replace(advantage=(*links, gate)), ["draw.advantage"], members=members)[
        "draw.advantage"
    ]


@EXAMPLES.by("advantages with entropy")
def entropy(example: Example) -> Found:
    return {"advantage": shaped(replace(GATE, at_most=0.7000001), example.values["R"], example.values["H"])}


@EXAMPLES.by("filter by the README")
def gate(example: Example) -> Found:
    entropies = example.values["H"]
    return {"delta_of_the_second": shaped(GATE, np.array([1.0, 0.0, 0.0, 1.0]), entropies) != 0}


@EXAMPLES.by("loss of both forms")
def forms(example: Example) -> Found:
    advantage = float(example.values["A"])

    def slope(**options: Any) -> float:
        # The slopes by log p add up to the loss at ratio 1; the mean is over two completions.
        result = pair("11 12 13 20", "11 14 15 16 20", (advantage, 0.0), **options)
        return 2 * float(np.sum(result["gradient.logprob"][:4]))

    return {"readme": slope(), "code": slope(per_count=True)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
