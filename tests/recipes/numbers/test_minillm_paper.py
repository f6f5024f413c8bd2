"""Worked examples of MiniLLM, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Sum
from agentrl_core.model.logit_statistics import divergence
from agentrl_core.recipes.minillm import MeanReturn

EXAMPLES = PaperExamples("minillm")
CORPUS = "a corpus beside it"


@EXAMPLES.by("two responses")
def responses(example: Example) -> Found:
    p, q = (example.values[name].tolist() for name in ("p", "q"))
    members = [
        {"group": "a", "path": "1 | 3 4 5", "reward": 0, "logprobs": p[:3]},
        {"group": "b", "path": "1 | 6 7", "reward": 0, "logprobs": p[3:]},
    ]
    returns = (recipes.MINILLM.chain("advantage")[0], MeanReturn(own=True))
    whiten = GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8)
    results = {}
    for name, recipe in (
        ("advantage", recipes.MINILLM),
        ("return_code", recipes.MINILLM.replace(advantage=returns)),
        ("advantage_code", recipes.MINILLM.replace(advantage=(*returns, whiten))),
    ):
        columns = {"token": {"teacher_logprob": q}}
        results[name] = computed(recipe, ["token.advantage"], members=members, columns=columns)["token.advantage"]
    return results


@EXAMPLES.by("an older policy sampled")
def older(example: Example) -> Found:
    assert isinstance(recipes.MINILLM.loss, Sum)
    recipe = given_advantages(recipes.MINILLM.replace(loss=recipes.MINILLM.loss.first))
    pairs = zip(example.values["old"].tolist(), example.values["A"].tolist(), strict=True)
    members = [{"path": f"1 | {3 + place}", "reward": a, "logprobs": [old]} for place, (old, a) in enumerate(pairs)]
    result = computed(recipe, ["loss"], members=members, policy={"logprob": example.values["new"].tolist()})
    return {"loss": result["loss"]}


@EXAMPLES.by("the mixture sampled")
def mixed(example: Example) -> Found:
    """The rollouts' log-probs are those of the mixture."""
    assert isinstance(recipes.MINILLM.loss, Sum)
    given = example.values
    mixture = given["alpha"] * given["q"] + (1 - given["alpha"]) * given["old"]
    recipe = given_advantages(recipes.MINILLM.replace(loss=recipes.MINILLM.loss.first))
    return {"loss": single_tokens(recipe, np.log(mixture), np.log(given["new"]), given["A"])["loss"]}


@EXAMPLES.by("the single-step term, tool tokens out")
def single_step(example: Example) -> Found:
    assert isinstance(recipes.MINILLM.loss, Sum)
    student, teacher = (torch.tensor(example.values[name]).log()[None] for name in ("Q", "P"))
    recipe = recipes.MINILLM.replace(
        reward=recipes.GRPO.reward, advantage=None, loss=recipes.MINILLM.loss.second, epochs=1, minibatches=1
    )
    answers = [float(divergence(student, teacher, 1.0)), 0.0]
    members = [{"path": "1 | 3 ~ 9 9 | 4", "reward": 0}]
    return {"loss": computed(recipe, ["loss"], members=members, policy={"divergence": answers})["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_other_example_is_computed() -> None:
    assert {*EXAMPLES.names, CORPUS} == set(EXAMPLES.all_names)
