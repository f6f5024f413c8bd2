"""Worked examples of the paper of did, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import pairs
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes

EXAMPLES = PaperExamples("did")


def loss(chosen: list[float], rejected: list[float], beta: float | None = None) -> Value:
    """Return the loss of a pair of answers with these log-ratios of tokens."""
    recipe = recipes.DID
    if beta is not None:
        recipe = recipe.replace(loss=replace(recipe.loss, beta=beta))
    return pairs(recipe, [(chosen, rejected)])["loss"]


def reward(away: list[float], beta: float | None = None) -> Value:
    """Return the reward of an answer relative to one that is as likely as under the reference."""
    return -np.log(np.expm1(loss(away, [0.0], beta)))


@EXAMPLES.by("preferences of the DID and the reward of DPO agree")
def preference(example: Example) -> Found:
    given = example.values
    away, beta = np.log(given["pi"] / given["ref"]).tolist(), float(given["beta"])
    chosen = np.exp(-loss([away[0]], [away[1]], beta))
    return {
        "reward": np.concatenate([reward([each], beta) for each in away]),
        "preference": chosen,
        "preference_by_did": chosen,
    }


@EXAMPLES.by("sums over tokens, context left out")
def sums(example: Example) -> Found:
    given = example.values
    log_ratios = (given["pi"] - given["ref"])[given["m"] > 0]  # tokens of a tool lie between them
    return {"log_ratio": reward(log_ratios.tolist()) / recipes.DID.loss.beta}


@EXAMPLES.by("loss of a pair at the start and after a step")
def steps(example: Example) -> Found:
    results = [
        loss([win], [lose])
        for win, lose in zip(example.values["w"].tolist(), example.values["l"].tolist(), strict=True)
    ]
    return {"loss": np.concatenate(results), "loss_if_both_fall": loss([-0.3], [-1.6])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
