"""Worked examples of the paper of longcat_flash, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("longcat_flash")
UNWEIGHTED = recipes.LONGCAT_FLASH.replace(weight=None)


def objective(longest: float, *draws: tuple[Sequence[float], Sequence[float], float]) -> Value:
    """Return the objective of responses, from log engine weights and log-ratios of tokens, and the advantage."""
    recipe = recipes.LONGCAT_FLASH.replace(
        advantage=GroupRelative(center="none", scale="none"),
        loss=replace(recipes.LONGCAT_FLASH.loss, constant=longest),
    )
    members = answers([len(weights) for weights, _, _ in draws], [advantage_values for _, _, advantage_values in draws])
    trainer = np.concatenate([weights for weights, _, _ in draws]) - 1.0
    moved = trainer + np.concatenate([ratios for _, ratios, _ in draws])
    result = computed(
        recipe,
        ["loss"],
        members=members,
        columns={"token": {"recomputed_logprob": trainer.tolist()}},
        policy={"logprob": moved.tolist()},
    )
    return -result["loss"]


@EXAMPLES.by("responses of three and of one tokens, T_max = 4")
def two(example: Example) -> Found:
    given = example.values
    one, other = float(given["A"][0]), float(given["A"][1])
    tokens = zip(given["mu_a"].tolist(), given["d_a"].tolist(), strict=True)
    return {
        "tokens_a": [objective(1.0, ([weight], [ratio], one)) for weight, ratio in tokens],
        "tokens_b": objective(1.0, (given["mu_b"], given["d_b"], other)),
        "objective": objective(4.0, (given["mu_a"], given["d_a"], one), (given["mu_b"], given["d_b"], other)),
    }


@EXAMPLES.by("the outer maximum on both signs, as it is written")
def maximum(example: Example) -> Found:
    ratios, advantage = np.log(example.values["r"]).tolist(), float(example.values["A"])
    return {
        "positive_with_the_maximum_on_negatives_only": [objective(1.0, ([0.0], [each], advantage)) for each in ratios],
        "negative": [objective(1.0, ([0.0], [each], -advantage)) for each in ratios],
    }


@EXAMPLES.by("two optimizer steps")
def steps(example: Example) -> Found:
    given, results = example.values, {}
    for name, ratios in (("objective_1", given["first"]), ("objective_2", given["second"])):
        draws = zip(ratios.tolist(), given["A"].tolist(), strict=True)
        results[name] = objective(1.0, *[([0.0], [ratio], advantage) for ratio, advantage in draws])
    return results


@EXAMPLES.by("groups of five and of one")
def groups(example: Example) -> Found:
    one, other = advantages(UNWEIGHTED, example.values["R"], np.ravel(example.values["S"]))
    return {"advantage_a_n_minus_1": one, "centred_b": other}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage_n_minus_1": advantages(UNWEIGHTED, [*example.values["R"], np.nan])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
