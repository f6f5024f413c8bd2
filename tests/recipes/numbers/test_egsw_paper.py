"""Worked examples of the paper of egsw, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.egsw import SoftmaxScaled

EXAMPLES = PaperExamples("egsw")
BEFORE, SCALED = recipes.EGSW.chain("advantage")
assert isinstance(SCALED, SoftmaxScaled)
LOSSES = given_advantages(recipes.EGSW)


def softmax_scaled(example: Example) -> SoftmaxScaled:
    """The component has the numbers of an example; the paper does not give its own."""
    given = example.values
    return replace(SCALED, coefficient=float(given.get("alpha", 0.3)), temperature=float(given.get("P", 1.5)))


def group(recipe: Recipe, rewards: Sequence[float], entropies: Value) -> Value:
    """Return advantages of one-token answers; an unscored answer has reward `nan`."""
    members = [
        {**member, "entropies": [entropy]}
        for member, entropy in zip(answers([1] * len(rewards), rewards), entropies.tolist(), strict=True)
    ]
    for member in members:
        if np.isnan(member["reward"]):
            del member["reward"]
    return computed(recipe, ["draw.advantage"], members=members)["draw.advantage"]


@EXAMPLES.by("trajectory-wise weights of groups of four and of three")
def by_trajectory(example: Example) -> Found:
    given, results = example.values, {}
    recipe = recipes.EGSW.replace(advantage=(BEFORE, softmax_scaled(example)))
    rescaled = recipes.EGSW.replace(advantage=(BEFORE, replace(softmax_scaled(example), rescale_mean_one=True)))
    for end, rewards, entropies in (("", given["R"], given["H"]), ("_second", given["S"], given["G"])):
        coefficient = group(recipe, rewards.tolist(), entropies)
        results[f"coefficient{end}"] = coefficient
        results[f"weight{end}"] = coefficient / advantages(recipes.EGSW.replace(advantage=BEFORE), rewards)[0]
    results["coefficient_if_weights_had_mean_1"] = group(rescaled, given["R"].tolist(), given["H"])
    return results


@EXAMPLES.by("step-wise weights, responses of two and one steps")
def by_step(example: Example) -> Found:
    given = example.values
    first, second = given["H_first"]
    batch = small(
        [(0, [2]), (0, [1])],
        draw_score=[1.0, 0.0],
        draw_advantage=given["A"],
        token_entropy=[first, given["H_second_of_first"], second],
    )
    token_advantages = replace(softmax_scaled(example), level="token")(batch).column("advantage", "token")
    return {"coefficient_by_token": token_advantages, "weight_first_step": token_advantages[[0, 2]] / given["A"]}


@EXAMPLES.by("a small P lets one response dominate")
def dominated(example: Example) -> Found:
    given = example.values
    batch = small([(0, [1])] * 3, draw_score=[0.0] * 3, draw_advantage=given["A"], token_entropy=given["H"])
    return {"weight": softmax_scaled(example)(batch).column("advantage", "draw") / given["A"]}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    recipe = recipes.EGSW.replace(advantage=(BEFORE, softmax_scaled(example)))
    return {"coefficient": group(recipe, example.values["R"].tolist(), example.values["H"])}


@EXAMPLES.by("one response of four has no score (convention)")
def unscored(example: Example) -> Found:
    recipe = recipes.EGSW.replace(advantage=(BEFORE, softmax_scaled(example)))
    result = group(recipe, [*example.values["R"].tolist(), np.nan], np.append(example.values["H"], 9.0))
    assert result[3] == 0.0
    return {"coefficient": np.append(result[:3], np.nan)}


@EXAMPLES.by("weights stay over two optimizer steps")
def steps(example: Example) -> Found:
    given = example.values
    weighted = given["w"] * given["A"]
    losses = [single_tokens(LOSSES, given["old"], new, weighted)["loss"] for new in (given["old"], given["second"])]
    return {"first_loss": losses[0], "second_loss": losses[1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
