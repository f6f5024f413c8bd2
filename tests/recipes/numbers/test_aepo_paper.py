"""Worked examples of the paper of aepo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("aepo")
CommonExamples(EXAMPLES, recipes.AEPO)
BRANCHING = recipes.AEPO.rollout
LOSSES = given_advantages(recipes.AEPO)


class Fork:
    """A turn after a tool call, with its uniform number."""

    def __init__(self, uniform: float) -> None:
        self.failed, self.follows_tool, self._uniform = False, True, uniform

    def uniform(self, copy: int) -> float:
        assert copy == 0
        return self._uniform


@EXAMPLES.by("budget")
def budget(example: Example) -> Found:
    return {"whole_rollouts": np.array([BRANCHING.starting(float(each), 0.0) for each in example.values["d"]], float)}


@EXAMPLES.by("branching")
def branching(example: Example) -> Found:
    given = zip(*(example.values[name] for name in ("u", "dH", "l")), strict=True)
    branches = [BRANCHING.penalised([Fork(u)], np.array([change]), int(copies), 10)[0] for u, change, copies in given]  # type: ignore[list-item]
    return {"branch": np.array(branches, float)}


def slopes(example: Example) -> Found:
    """Value and slope are compared for each ratio separately."""
    values, gradients = [], []
    for ratio, advantages in zip(example.values["r"], example.values["A"], strict=True):
        one = np.ones(1)
        result = single_tokens(LOSSES, -one, np.log(ratio) - one, advantages * one)
        values.append(-result["loss"][0])
        gradients.append(-result["gradient.logprob"][0])
    return {"value": np.array(values), "slope": np.array(gradients)}


@EXAMPLES.by("value and slope beyond the clip")
def beyond(example: Example) -> Found:
    result = slopes(example)
    return {"value": result["value"], "slope_balanced": result["slope"]}


@EXAMPLES.by("below the range nothing changes")
def below(example: Example) -> Found:
    return slopes(example)


@EXAMPLES.by("advantage by entropy")
def by_entropy(example: Example) -> Found:
    entropies = example.values["H"]
    members = [{**answers([len(entropies)], [1])[0], "entropies": entropies.tolist()}]
    weights = computed(recipes.AEPO, ["token.weight"], members=members)["token.weight"]
    return {"advantage": example.values["A"] * weights}


@EXAMPLES.by("plain clipping at the second step; balanced clipping keeps the first token's slope")
def second_step(example: Example) -> Found:
    old, first, second, advantages = (example.values[name] for name in ("old", "first", "second", "A"))
    moved = single_tokens(LOSSES, old, second, advantages)
    assert moved["gradient.logprob"][0] != 0, "balanced clipping"
    return {"first_loss": single_tokens(LOSSES, old, first, advantages)["loss"], "second_loss": moved["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
