"""Worked examples of the paper of tr_dpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from common_examples import pairs
from moved_models import followed
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.schedule import SyncModel

EXAMPLES = PaperExamples("tr_dpo")
TR_DPO = recipes.TR_DPO
HOOK = TR_DPO.hooks
assert isinstance(HOOK, SyncModel)


def losses(**options: Any) -> Recipe:
    """Return the recipe with other options of its loss."""
    return TR_DPO.replace(loss=replace(TR_DPO.loss, **options), hooks=None)


@EXAMPLES.by("loss before and after an update of the reference")
def before_and_after(example: Example) -> Found:
    given = {name: float(example.values[name]) for name in ("theta", "ref", "w", "l", "beta")}
    assert TR_DPO.loss.beta == given["beta"]
    soft = followed(TR_DPO, replace(HOOK, every=1), np.array([given["theta"]]), given["ref"])
    hard = followed(TR_DPO, replace(HOOK, every=1, mix=1.0), np.array([given["theta"]]), given["ref"])
    away = given["theta"] - np.concatenate([[given["ref"]], soft, hard])
    loss = np.concatenate(
        [pairs(losses(), [([each * given["w"]], [each * given["l"]])])["loss"] for each in away.tolist()]
    )
    return {"reference": soft, "loss": loss, "margins": -np.log(np.expm1(loss))}


@EXAMPLES.by("reference over four steps")
def four_steps(example: Example) -> Found:
    thetas, start = example.values["theta"], example.values["ref"]
    return {
        "soft": followed(TR_DPO, replace(HOOK, every=2), thetas, start),
        "hard": followed(TR_DPO, replace(HOOK, every=2, mix=1.0), thetas, start),
    }


def test_the_reference_moves_after_every_512_steps() -> None:
    assert (HOOK.unit, [number for number in range(1, 1100) if HOOK.is_due(number)]) == ("steps", [512, 1024])


@EXAMPLES.by("two pairs of unequal length")
def unequal(example: Example) -> Found:
    given = example.values
    first = ((given["lp_w"] - given["ref_w"]).tolist(), (given["lp_l"] - given["ref_l"]).tolist())
    second = tuple([float(given[f"x_2{end}"] / given[f"n_2{end}"])] * int(given[f"n_2{end}"]) for end in ("w", "l"))
    both = [first, (second[0], second[1])]
    ipo = {"kind": "square", "reduce": "mean"}
    return {
        "dpo": np.concatenate([pairs(losses(), [pair])["loss"] for pair in both]),
        "loss": pairs(losses(), both)["loss"],
        "ipo": np.concatenate([pairs(losses(**ipo), [pair])["loss"] for pair in both]),
    }


@EXAMPLES.by("derivative by the chosen log-probability")
def derivative(example: Example) -> Found:
    return {
        "derivative": np.array(
            [pairs(losses(), [([x], [0.0])])["gradient.logprob"][0] for x in example.values["x"].tolist()]
        )
    }


@EXAMPLES.by("a pair without preference (convention)")
def unlabelled(example: Example) -> Found:
    x = float(example.values["m"][0]) / TR_DPO.loss.beta
    result = pairs(losses(), [([x], [0.0]), ([0.4], [0.1])], scored=1)
    assert not result["gradient.logprob"][2:].any()
    return {"loss": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
