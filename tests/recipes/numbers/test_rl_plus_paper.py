"""Worked examples of the paper of rl_plus, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("rl_plus")
ALONE = "a group of one"
OWN = given_advantages(recipes.RL_PLUS, constant=1.0, entropy=0.0, expert=None)
UNSCORED = "one rollout of four has no score (convention)"
CommonExamples(EXAMPLES, recipes.RL_PLUS, but=[ALONE, UNSCORED], losses=OWN)
SCRIPT = recipes.RL_PLUS.replace(advantage=GroupRelative(scale="none"), weight=None)


def expert(probabilities: Value, old: Value, advantage: float, **options: float) -> Value:
    """Return the decrease of each expert token's loss by its log-prob."""
    surrogate = replace(recipes.RL_PLUS.loss.expert, **options)
    recipe = given_advantages(recipes.RL_PLUS, constant=1.0, entropy=0.0, expert=surrogate)
    result = computed(
        recipe.replace(weight=recipes.RL_PLUS.weight, old_logprob="recomputed"),
        ["gradient.logprob"],
        members=[{**answers([len(old)], [advantage])[0], "unsampled": True}],
        columns={"token": {"recomputed_logprob": np.log(old).tolist()}},
        policy={"logprob": np.log(probabilities).tolist()},
    )
    return -result["gradient.logprob"]


@EXAMPLES.by("ratios of external tokens")
def ratios(example: Example) -> Found:
    return {"rho": expert(example.values["pi"], example.values["old"], 1.0, prior=1.0, exploration=0.0)}


@EXAMPLES.by("with 1/|V| of a vocabulary of 1000")
def vocabulary(example: Example) -> Found:
    return {"rho": expert(example.values["pi"], example.values["old"], 1.0, prior=0.001, exploration=0.0)}


@EXAMPLES.by("advantages of external tokens")
def explored(example: Example) -> Found:
    probabilities, advantage = example.values["pi"], float(example.values["A"])
    with_exploration = expert(probabilities, probabilities, advantage, prior=1.0)
    return {
        "advantage": advantage
        * with_exploration
        / expert(probabilities, probabilities, advantage, prior=1.0, exploration=0.0)
    }


@EXAMPLES.by("a group of an external and three own responses")
def group(example: Example) -> Found:
    return {"advantage": advantages(SCRIPT, example.values["R"])[0]}


@EXAMPLES.by(UNSCORED)
def unscored(example: Example) -> Found:
    return {"advantage": advantages(SCRIPT, [*example.values["R"], np.nan])[0]}


@EXAMPLES.by("no clip at the second step")
def unclipped(example: Example) -> Found:
    old, one = np.full(1, -1.0), np.ones(1)
    return {
        "objective": [-single_tokens(OWN, old, old + np.log(ratio), one)["loss"][0] for ratio in example.values["r"]]
    }


@EXAMPLES.by("entropy")
def entropy(example: Example) -> Found:
    recipe = given_advantages(recipes.RL_PLUS, aggregate="token_mean", constant=None, expert=None)
    result = computed(recipe, ["loss"], members=answers([2], [0]), policy={"entropy": example.values["H"].tolist()})
    return {"bonus": -result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
