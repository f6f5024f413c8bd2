"""Worked examples of the paper of implicit_reward, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import pairs
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("implicit_reward")
RECIPE = recipes.IMPLICIT_REWARD
WARM, PREFERENCE = RECIPE.loss


def warm_start(kind: str = "") -> Recipe:
    """Return the recipe with a divergence; its own if none is named."""
    return RECIPE.replace(loss=(replace(WARM, loss=replace(WARM.loss, kind=kind)), PREFERENCE)) if kind else RECIPE


def imitation_loss(kind: str, away: Value, members: Sequence[Mapping[str, Any]] | None = None) -> Mapping[str, Value]:
    """Return loss and gradient of demonstrations at these log-ratios, of one token each if members are not given."""
    return computed(
        warm_start(kind),
        ["loss", "gradient.logprob"],
        stage="warm_start",
        members=answers([1] * len(away), [1.0] * len(away)) if members is None else members,
        columns={"token": {"reference_logprob": (-1.0 - away).tolist()}},
        policy={"logprob": [-1.0] * len(away)},
    )


def weights(kind: str, away: Value) -> Value:
    """Return the weights of the gradients of demonstrations."""
    return -len(away) * imitation_loss(kind, away)["gradient.logprob"]


@EXAMPLES.by("rewards at four ratios")
def rewards(example: Example) -> Found:
    beta = float(example.values["beta"])
    return {
        kind: np.array([-beta * imitation_loss(kind, away)["loss"][0] for away in example.values["x"][:, None]])
        for kind in ("reverse_kl", "pearson", "hellinger")
    }


@EXAMPLES.by("losses and weights")
def losses_and_weights(example: Example) -> Found:
    away, far = example.values["x"], example.values["far"]
    return {
        "loss_kl": imitation_loss("reverse_kl", away)["loss"],
        "loss_pearson": imitation_loss("", away)["loss"],
        "loss_hellinger": imitation_loss("hellinger", away)["loss"],
        "weight_pearson": weights("", away),
        "weight_hellinger": weights("hellinger", away),
        "far_pearson": weights("", far),
        "far_hellinger": weights("hellinger", far),
    }


@EXAMPLES.by("likelihood and reverse KL differ by a constant")
def several_tokens(example: Example) -> Found:
    away = example.values["lp"] - example.values["lp_ref"]
    members = [{"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": 1.0}]
    result = imitation_loss("reverse_kl", away, members)
    np.testing.assert_allclose(result["gradient.logprob"], -1.0, err_msg="as plain likelihood")
    return {"loss": result["loss"]}


@EXAMPLES.by("first and second step")
def steps(example: Example) -> Found:
    return {"pearson": weights("", example.values["x"]), "hellinger": weights("hellinger", example.values["x"])}


@EXAMPLES.by("preference phase with the new reference")
def preferences(example: Example) -> Found:
    given = {name: float(value) for name, value in example.values.items()}
    results = {
        name: pairs(RECIPE, [([given["lp_w"] - given[f"{name}_w"]], [given["lp_l"] - given[f"{name}_l"]])])["loss"]
        for name in ("first", "warm")
    }
    margins = {name: -np.log(np.expm1(loss)) for name, loss in results.items()}
    return {"margin_to_base": margins["first"], "margin": margins["warm"], "loss": results["warm"]}


@EXAMPLES.by("a demonstration without a reference value (convention)")
def without_reference(example: Example) -> Found:
    away = np.append(example.values["x"], 7.0)  # the number is not used: the demonstration has no score
    result = computed(
        warm_start("hellinger"),
        ["loss"],
        stage="warm_start",
        members=answers([1] * len(away), [1.0] * len(away)),
        columns={"token": {"reference_logprob": (-1.0 - away).tolist()}, "draw": {"score": [1.0, 1.0, float("nan")]}},
    )
    return {"loss": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
