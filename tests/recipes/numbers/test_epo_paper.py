"""Worked examples of the paper of epo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import given_advantages, path_of
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.component import IterationRecord

EXAMPLES = PaperExamples("epo")


def loss_of(kind: str, entropies: Value, history: float, advantage: float) -> Value:
    """Loss of one answer with these entropies now, whose steps had this entropy before."""
    band = replace(recipes.EPO.loss.entropy, low=0.5, high=1.5, kind=kind)
    recipe = given_advantages(recipes.EPO, entropy=band)
    count = len(entropies)
    return computed(
        recipe,
        ["loss"],
        members=answers([count], [advantage]),
        columns={"token": {"entropy_history": [history] * count}},
        policy={"entropy": entropies.tolist()},
    )["loss"]


@EXAMPLES.by("penalties of four tokens at history 1.0")
def penalties(example: Example) -> Found:
    given = example.values
    return {"loss": loss_of("indicator", given["H"], float(given["h"]), -float(given["pg"]))}


@EXAMPLES.by("the penalty has no gradient")
def gradient(example: Example) -> Found:
    del example
    band = replace(recipes.EPO.loss.entropy, low=0.5, high=1.5, kind="indicator")
    found = computed(
        given_advantages(recipes.EPO, entropy=band),
        ["gradient.entropy"],
        members=answers([1], [0]),
        columns={"token": {"entropy_history": [1.0]}},
        policy={"entropy": [2.0]},
    )["gradient.entropy"]
    return {"gradient": found + band.coefficient}


@EXAMPLES.by("observations have no entropy in the mean")
def observations(example: Example) -> Found:
    own = example.values["H"][example.values["mask"] > 0].tolist()
    member = {"path": path_of(example.values["mask"]), "reward": 1, "entropies": own}
    batch = rollouts([{**member, "path": "1 | 3*2"}], 0)
    state = recipes.EPO.weight.next(recipes.EPO.weight.initial_state(), IterationRecord.of(batch, {}))
    return {"mean_entropy": np.array(state["sums"])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
