"""Worked examples of the paper of empo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from common_examples import CommonExamples, advantages, given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import AnswerAgreement

EXAMPLES = PaperExamples("empo")
OF_THE_CODE = recipes.EMPO.replace(
    reward=AnswerAgreement(),
    advantage=replace(recipes.EMPO.advantage, eps=1e-4),
    weight=None,
    loss=Policy(aggregate="sequence_mean"),
)
LATER = "answers that an older policy sampled"
CommonExamples(EXAMPLES, OF_THE_CODE)


def shares(answers_: str, recipe: Recipe = recipes.EMPO) -> Found:
    """Return scores and entropy of a group with these answers; a dash is an empty one."""
    members = [
        {"path": "1 | 3", "facts": {"answer_cluster": "" if each == "-" else each, "answer_parsed": int(each != "-")}}
        for each in answers_.split()
    ]
    return dict(computed(recipe, ["draw.score", "draw.semantic_entropy"], members=members))


@EXAMPLES.by("seven answers")
def seven(example: Example) -> Found:
    del example
    result = shares("a a b a c b a")
    return {"reward": result["draw.score"], "entropy": result["draw.semantic_entropy"][0]}


@EXAMPLES.by("their advantages")
def advantage(example: Example) -> Found:
    recipe = recipes.EMPO.replace(weight=None)
    return {
        "advantage": advantages(plain_reward(recipe), example.values["r"])[0],
        "advantage_trl": advantages(plain_reward(OF_THE_CODE), example.values["r"])[0],
    }


@EXAMPLES.by("all differ")
def differ(example: Example) -> Found:
    del example
    result = shares("a b c")
    return {
        "reward": result["draw.score"],
        "entropy": result["draw.semantic_entropy"][0],
        "reward_code": shares("a b c", OF_THE_CODE)["draw.score"],
    }


@EXAMPLES.by("an empty answer")
def empty(example: Example) -> Found:
    del example
    return {"reward": shares("x x -")["draw.score"]}


@EXAMPLES.by("all agree")
def agree(example: Example) -> Found:
    return {"advantage": advantages(plain_reward(recipes.EMPO.replace(weight=None)), example.values["r"])[0]}


@EXAMPLES.by("one answer")
def one(example: Example) -> Found:
    del example
    return {"reward": shares("a")["draw.score"], "reward_code": shares("a", OF_THE_CODE)["draw.score"]}


@EXAMPLES.by(LATER)
def later(example: Example) -> Found:
    assert recipes.EMPO.minibatches == 8
    rows = answers([2, 2, 1], example.values["A"].tolist())
    losses = given_advantages(recipes.EMPO)
    logprobs = (example.values["d"] - 1.0).tolist()
    members = [{**each, "logprobs": [-1.0] * count} for each, count in zip(rows, [2, 2, 1], strict=True)]
    result = computed(losses, ["loss", "gradient.logprob"], members=members, policy={"logprob": logprobs})
    return {"loss": result["loss"][0], "gradient": result["gradient.logprob"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
