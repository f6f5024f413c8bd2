"""Worked examples of GKD, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.loss import Divergence
from agentrl_core.model.logit_statistics import divergence
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("gkd")


def distances(example: Example, beta: float) -> float:
    """Return the result of `pack.run(policy, teacher=teacher)` for the two distributions of an example."""
    p, q = (torch.tensor(example.values[name]).log()[None] for name in ("Q", "P"))
    return float(divergence(p, q, beta))


def with_beta(beta: float) -> Recipe:
    assert isinstance(recipes.GKD.loss, Divergence)
    return recipes.GKD.replace(loss=replace(recipes.GKD.loss, beta=beta))


def loss_of(example: Example, beta: float, path: str, others: int = 0, **more: object) -> float:
    answers = [distances(example, beta), *[0.0] * others]
    members = [{"path": path, "reward": 0, **more}]
    result = computed(with_beta(beta), ["loss"], members=members, policy={"divergence": answers})
    return float(result["loss"][0])


@EXAMPLES.by("three tokens in the vocabulary, beta 0.5")
def middle(example: Example) -> Found:
    assert with_beta(0.5) == recipes.GKD
    return {"divergence": loss_of(example, 0.5, "1 | 2")}


@EXAMPLES.by("beta 0.1")
def small(example: Example) -> Found:
    return {"divergence": loss_of(example, 0.1, "1 | 2")}


@EXAMPLES.by("both limits")
def limits(example: Example) -> Found:
    return {"forward": loss_of(example, 0.0, "1 | 2"), "reverse": loss_of(example, 1.0, "1 | 2")}


@EXAMPLES.by("three output tokens of one sequence, a tool's tokens between them")
def tool(example: Example) -> Found:
    return {"loss": loss_of(example, 0.0, "1 | 2 ~ 9 9 | 2 2", others=2)}


@EXAMPLES.by("outputs of a data set")
def data(example: Example) -> Found:
    return {"loss": loss_of(example, 0.0, "1 | 2", unsampled=True)}


@EXAMPLES.by("two outputs of unequal length, one of a data set")
def unequal(example: Example) -> Found:
    far, results = distances(example, 0.0), {}
    members = [{"path": "1 | 2", "reward": 0}, {"path": "1 | 2 2 2", "reward": 0, "unsampled": True}]
    recipe = with_beta(0.0)
    assert isinstance(recipe.loss, Divergence)
    by_token = recipe.replace(loss=replace(recipe.loss, aggregate="token_mean"))
    for name, each in (("loss", recipe), ("token_mean", by_token)):
        answers = {"divergence": [far, far, 0.0, 0.0]}
        results[name] = computed(each, ["loss"], members=members, policy=answers)["loss"][0]
    return results


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
