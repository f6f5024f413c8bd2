"""Worked examples of the paper of bfs_prover_v2, computed by the recipe."""

from __future__ import annotations

import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipes.bfs_prover_v2 import TacticBand

EXAMPLES = PaperExamples("bfs_prover_v2")


@EXAMPLES.by("a band of perplexity and the loss of the kept steps (second-hand)")
def band(example: Example) -> Found:
    """The middle three of five, as quantiles."""
    surprise = (-example.values["nll"]).tolist()
    members = [
        {**answer, "logprobs": [logprob]} for answer, logprob in zip(answers([1] * 5, [1.0] * 5), surprise, strict=True)
    ]
    result = computed(
        recipes.BFS_PROVER_V2.replace(weight=TacticBand(0.2, 0.8)),
        ["step.keep", "loss"],
        members=members,
        policy={"logprob": surprise},
    )
    return {"keep": result["step.keep"], "loss": result["loss"]}


@EXAMPLES.by("reward of each step (second-hand)")
def rewards(example: Example) -> Found:
    members = answers([1] * 5, example.values["on_proof"].tolist())
    policy = {"logprob": (-example.values["nll"]).tolist()}
    result = computed(recipes.BFS_PROVER_V2, ["draw.advantage", "loss"], members=members, policy=policy)
    return {"reward": result["draw.advantage"], "loss": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
