"""Worked examples of the paper of empg, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.component import mean_of_tokens

EXAMPLES = PaperExamples("empg")


def steps(entropies: Value, advantages: Value, lengths: tuple[int, ...], **options: Any) -> Value:
    """Return advantages of the steps of rollouts with these entropies and advantages."""
    *_, confidence = recipes.EMPG.chain("advantage")
    recipe = given_advantages(recipes.EMPG)
    recipe = recipe.replace(advantage=(recipe.advantage, replace(confidence, **options)))
    starts = np.cumsum([0, *lengths])
    members = [
        {
            "path": "1 " + " ~ 9 ".join("| 3" for _ in range(length)),
            "reward": float(advantages[start]),
            "entropies": entropies[start : start + length].tolist(),
        }
        for start, length in zip(starts[:-1], lengths, strict=True)
    ]
    return computed(recipe, ["step.advantage"], members=members)["step.advantage"]


@EXAMPLES.by("two rollouts of two steps and of one")
def two(example: Example) -> Found:
    entropies, advantages = example.values["H"], example.values["A"]
    gates = steps(entropies, np.ones(3), (2, 1), bonus_coefficient=0.0, recenter=False)
    return {"gate": gates, "advantage": steps(entropies, advantages, (2, 1))}


@EXAMPLES.by("equal entropies")
def equal(example: Example) -> Found:
    return {"gate": steps(example.values["H"], np.ones(3), (2, 1), bonus_coefficient=0.0, recenter=False)}


@EXAMPLES.by("entropy of a step")
def entropy(example: Example) -> Found:
    member = {"path": "1 | 3*3", "reward": 1, "trainable": example.values["mask"].astype(int).tolist()}
    batch = rollouts([{**member, "entropies": example.values["H"].tolist()}], 0)
    return {"entropy": mean_of_tokens(batch, "entropy", "step")[0]}


@EXAMPLES.by("one step in the batch")
def one(example: Example) -> Found:
    return {"advantage": steps(np.array([0.5]), np.array([float(example.values["A"])]), (1,))}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
