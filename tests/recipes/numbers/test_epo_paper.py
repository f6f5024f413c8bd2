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


def loss_of(kind: str, entropies: Value, history: float, advantage: float, early: float = 0.0) -> Found:
    """Return the loss of one answer with these entropies, after iterations of this mean entropy, and its slopes."""
    band = replace(recipes.EPO.loss.entropy, low=0.5, high=1.5, kind=kind, early=early)
    recipe = given_advantages(recipes.EPO, entropy=band)
    count = len(entropies)
    result = computed(
        recipe,
        ["loss", "gradient.entropy"],
        members=answers([count], [advantage]),
        columns={"token": {"entropy_history": [history] * count}},
        policy={"entropy": entropies.tolist()},
    )
    return {"loss": result["loss"], "gradient": result["gradient.entropy"]}


@EXAMPLES.by("penalties of four tokens at history 1.0")
def penalties(example: Example) -> Found:
    given = example.values
    early = recipes.EPO.loss.entropy.early.at(int(given["k"]))
    return loss_of("hinge", given["H"], float(given["h"]), -float(given["pg"]), early)


@EXAMPLES.by("penalties of four tokens at history 1.0, in the code")
def penalties_in_code(example: Example) -> Found:
    given = example.values
    return {"loss": loss_of("indicator", given["H"], float(given["h"]), -float(given["pg"]))["loss"]}


@EXAMPLES.by("weights over a run of 150 iterations")
def weights(example: Example) -> Found:
    bands = [recipes.EPO.loss.entropy.at(int(iteration)) for iteration in example.values["k"]]
    return {"weights": np.array([band.smoothing + band.early for band in bands])}


@EXAMPLES.by("the history of three iterations")
def history(example: Example) -> Found:
    component, given = recipes.EPO.weight, example.values
    state, results = component.initial_state(), []
    for path, entropies in (("1 | 3*2 ~ 9 | 4", given["H0"]), ("1 | 3", given["H1"]), ("1 | 3", given["H1"])):
        batch = rollouts([{"path": path, "reward": 1, "entropies": entropies.tolist()}], 0)
        results += np.unique(component.add_columns(state, batch).column("entropy_history", "token")).tolist()
        state = component.next(state, IterationRecord.of(batch, {}))
    return {"reference": np.array(results)}


@EXAMPLES.by("the penalty has no gradient")
def gradient(example: Example) -> Found:
    del example
    band = replace(recipes.EPO.loss.entropy, low=0.5, high=1.5, kind="indicator", early=0.0)
    entropy_gradient = computed(
        given_advantages(recipes.EPO, entropy=band),
        ["gradient.entropy"],
        members=answers([1], [0]),
        columns={"token": {"entropy_history": [1.0]}},
        policy={"entropy": [2.0]},
    )["gradient.entropy"]
    return {"gradient": entropy_gradient + band.coefficient}


@EXAMPLES.by("observations have no entropy in the mean")
def observations(example: Example) -> Found:
    entropies = example.values["H"][example.values["mask"] > 0].tolist()
    member = {"path": path_of(example.values["mask"]), "reward": 1, "entropies": entropies}
    batch = rollouts([{**member, "path": "1 | 3*2"}], 0)
    state = recipes.EPO.weight.next(recipes.EPO.weight.initial_state(), IterationRecord.of(batch, {}))
    return {"mean_entropy": np.array([state["sum"]])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
