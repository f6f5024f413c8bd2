"""Worked examples of the paper of empo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from common_examples import CommonExamples, advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("empo")
AS_TRL = recipes.EMPO.replace(advantage=replace(recipes.EMPO.advantage, eps=1e-4))
CommonExamples(EXAMPLES, AS_TRL.replace(weight=None))


def shares(answers_: str) -> Found:
    """Scores and entropy of a group with these answers; a dash is an empty one."""
    members = [
        {"path": "1 | 3", "facts": {"answer_cluster": "" if each == "-" else each, "answer_parsed": int(each != "-")}}
        for each in answers_.split()
    ]
    return dict(computed(recipes.EMPO, ["draw.score", "draw.semantic_entropy"], members=members))


@EXAMPLES.by("seven answers")
def seven(example: Example) -> Found:
    del example
    found = shares("a a b a c b a")
    return {"reward": found["draw.score"], "entropy": found["draw.semantic_entropy"][0]}


@EXAMPLES.by("their advantages")
def advantage(example: Example) -> Found:
    return {"advantage": advantages(plain_reward(AS_TRL.replace(weight=None)), example.values["r"])[0]}


@EXAMPLES.by("all differ")
def differ(example: Example) -> Found:
    del example
    found = shares("a b c")
    return {"reward": found["draw.score"], "entropy": found["draw.semantic_entropy"][0]}


@EXAMPLES.by("an empty answer")
def empty(example: Example) -> Found:
    del example
    return {"reward": shares("x x -")["draw.score"]}


@EXAMPLES.by("all agree")
def agree(example: Example) -> Found:
    return {"advantage": advantages(plain_reward(AS_TRL.replace(weight=None)), example.values["r"])[0]}


@EXAMPLES.by("one answer")
def one(example: Example) -> Found:
    del example
    return {"reward": shares("a")["draw.score"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
