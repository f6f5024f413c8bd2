"""Worked examples of the paper of igpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from common_examples import CommonExamples, advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("igpo")
TOGETHER, TO_GO = recipes.IGPO.chain("advantage")
IN_CODE = (replace(TOGETHER, column="gain"), replace(TOGETHER, column="score", rows="last", add=True), TO_GO)
"""The newer public code: gains and outcomes are each compared only with their own kind."""
CommonExamples(EXAMPLES, recipes.IGPO)


@EXAMPLES.by("gains of three turns")
def gains(example: Example) -> Found:
    means = [float(np.mean(example.values[f"lp{turn}"])) for turn in range(3)]
    turn_gains = computed(
        recipes.IGPO,
        ["step.gain"],
        members=[{"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": 1}],
        columns={
            "draw": {"answer_logprob_before": means[:1]},
            "step": {"answer_logprob": [*means[1:], -0.1]},
            "token": {"reference_logprob": [-1.0] * 3},
        },
    )["step.gain"]
    assert np.isnan(turn_gains[-1]), "the last turn answers"
    return {"gains": turn_gains[:-1]}


def turn_advantages(recipe: Recipe, example: Example) -> Found:
    """Return turn advantages of a rollout of three turns and one of two; an unscored one with a large gain is added."""
    gained, outcomes = example.values["gains"], example.values["F1"].tolist()
    # Probabilities that rise by the gains from 0.5.
    before = 0.5
    after = [before + gained[0], before + gained[0] + gained[1], 0.9, before + gained[2], 0.9, 0.99, 0.9]
    step_advantages = computed(
        recipe,
        ["step.advantage"],
        members=[
            {"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": outcomes[0]},
            {"path": "1 | 3 ~ 9 | 4", "reward": outcomes[1]},
            {"path": "1 | 3 ~ 9 | 6"},
        ],
        columns={
            "draw": {"answer_logprob_before": [float(np.log(before))] * 3},
            "step": {"answer_logprob": np.log(after).tolist()},
            "token": {"reference_logprob": [-1.0] * 7},
        },
    )["step.advantage"]
    assert not step_advantages[5:].any()
    return {"advantage_1": step_advantages[:3], "advantage_2": step_advantages[3:5]}


@EXAMPLES.by("normalised together, then summed to go")
def together(example: Example) -> Found:
    return turn_advantages(recipes.IGPO, example)


@EXAMPLES.by("normalised by kind, then summed to go")
def by_kind(example: Example) -> Found:
    return turn_advantages(recipes.IGPO.replace(advantage=IN_CODE), example)


@EXAMPLES.by("no outcome score for a rollout (convention)")
def unscored(example: Example) -> Found:
    recipe = plain_reward(recipes.IGPO.replace(advantage=replace(IN_CODE[1], add=False)))
    return {"outcome_of_the_scored": advantages(recipe, [*example.values["F1"], np.nan])[0][:-1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
