"""Worked examples of the paper of f_dpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import pairs
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("f_dpo")
F_DPO = recipes.F_DPO
DIVERGENCES = {"reverse": "reverse_kl", "forward": "forward_kl", "js": "js", "alpha": "alpha"}


def losses(**options: Any) -> Recipe:
    """Return the recipe with other options of its loss."""
    return F_DPO.replace(loss=replace(F_DPO.loss, **options))


def margin(chosen: float, rejected: float, **loss: Any) -> Value:
    """Return the margin of a pair with these log-ratios, from its loss."""
    return -np.log(np.expm1(pairs(losses(**loss), [([chosen], [rejected])])["loss"]))


@EXAMPLES.by("four divergences on two pairs of unequal length")
def divergences(example: Example) -> Found:
    given = example.values
    assert F_DPO.loss.beta == given["beta"]
    first = ((given["w"] - given["w_ref"]).tolist(), (given["l"] - given["l_ref"]).tolist())
    second = ([float(given["x_w2"])], [float(given["x_l2"])])
    results = {
        f"loss_{name}": pairs(losses(divergence=kind), [first, second])["loss"] for name, kind in DIVERGENCES.items()
    }
    for name, kind in DIVERGENCES.items():
        sums = [[float(np.sum(answer)) for answer in pair] for pair in (first, second)]
        results[f"margin_{name}"] = np.concatenate([margin(*each, divergence=kind) for each in sums])
    return {**results, "loss_alpha": pairs(losses(), [first, second])["loss"]}


@EXAMPLES.by("coefficients of grad log pi")
def coefficients(example: Example) -> Found:
    xw, xl = float(example.values["xw"]), float(example.values["xl"])
    results = {}
    for name in ("forward", "js", "alpha"):
        gradient = pairs(losses(divergence=DIVERGENCES[name]), [([xw + 1.0, -1.0], [xl])])["gradient.logprob"]
        assert gradient[0] == pytest.approx(gradient[1])
        results[f"{name}_chosen_and_rejected"] = gradient[1:]
    return results


@EXAMPLES.by("limits of alpha")
def limits(example: Example) -> Found:
    x = example.values["x"].tolist()
    beta = F_DPO.loss.beta
    return {
        "near_reverse_kl": margin(*x, alpha=float(example.values["small"])) / beta,
        "forward_kl": margin(*x, divergence="forward_kl") / beta,
    }


@EXAMPLES.by("two steps from the reference")
def steps(example: Example) -> Found:
    ends = zip(example.values["xw"].tolist(), example.values["xl"].tolist(), strict=True)
    return {"loss": np.concatenate([pairs(losses(divergence="js"), [([xw], [xl])])["loss"] for xw, xl in ends])}


@EXAMPLES.by("a pair without preference (convention)")
def unlabelled(example: Example) -> Found:
    x = float(example.values["margin"][0]) / F_DPO.loss.beta
    result = pairs(losses(divergence="reverse_kl"), [([x], [0.0]), ([0.4], [0.1])], scored=1)
    assert not result["gradient.logprob"][2:].any()
    return {"loss": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
