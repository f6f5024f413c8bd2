"""Worked examples of the paper of a2pr, computed by the recipe."""

from __future__ import annotations

import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Sum

EXAMPLES = PaperExamples("a2pr")


@EXAMPLES.by("the VAE loss keeps its denominator")
def gated(example: Example) -> Found:
    """The gate and its denominator, with - log p as the distance."""
    values = example.values
    both = recipes.A2PR.loss
    result = computed(
        recipes.A2PR.replace(
            advantage=GroupRelative(center="none", scale="none"), loss=Sum(both.first, both.second, 0.0, 1.0)
        ),
        ["loss"],
        members=answers([1] * 3, (values["Q"] - values["V"]).tolist()),
        policy={"logprob": (-(values["e"] ** 2)).tolist()},
    )
    return {"loss": result["loss"] + 0.5 * values["kl"]}  # the autoencoder's term, which the recipe leaves out


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
