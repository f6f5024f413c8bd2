"""Worked examples of the paper of latr, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes

EXAMPLES = PaperExamples("latr")
ALONE = "a group of one"
CommonExamples(EXAMPLES, recipes.LATR, but=[ALONE])
LOSSES = given_advantages(recipes.LATR)


@EXAMPLES.by("edit distance at age 20")
def edits(example: Example) -> Found:
    parent = np.arange(20, dtype=np.int32)

    def child(changed: int) -> Value:
        return np.where(np.arange(20) < changed, parent + 100, parent).astype(np.int32)

    pruned = [recipes.LATR.rollout.at(0).are_similar(child(int(count)), parent) for count in example.values["edits"]]
    return {"pruned": np.array(pruned)}


@EXAMPLES.by("advantages of a group from tree and sampling")
def groups(example: Example) -> Found:
    one, other = advantages(recipes.LATR, example.values["R_a"], example.values["R_b"])
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by(ALONE)
def alone(example: Example) -> Found:
    raw = recipes.LATR.replace(advantage=replace(recipes.LATR.advantage, singleton="raw"))
    return {"advantage": advantages(raw, [float(example.values["R"])])[0]}


@EXAMPLES.by("one optimizer step: the ratio is 1 though the tree took the best token")
def one_step(example: Example) -> Found:
    logprobs = example.values["logp"]
    return {"loss": single_tokens(LOSSES, logprobs, logprobs, example.values["A"])["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
