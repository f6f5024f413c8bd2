"""Worked examples of the paper of grpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import KL

EXAMPLES = PaperExamples("grpo")
PAPER = given_advantages(recipes.GRPO, aggregate="sequence_mean")
"""The recipe's loss with the paper's aggregation."""
CommonExamples(EXAMPLES, recipes.GRPO, but=["a group of one"], losses=PAPER)


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    raw = recipes.GRPO.replace(advantage=GroupRelative(singleton="raw"))
    return {"advantage": advantages(raw, [float(example.values["R"])])[0]}


@EXAMPLES.by("a group whose rewards are equal")
def equal(example: Example) -> Found:
    return {"advantage": advantages(recipes.GRPO, example.values["R"])[0]}


@EXAMPLES.by("the KL of three tokens")
def penalty(example: Example) -> Found:
    recipe = PAPER.replace(loss=replace(PAPER.loss, kl=KL(0.04)))
    members = [{"path": "1 | 3*3", "reward": 0.0}]
    columns = {"token": {"reference_logprob": example.values["ref"].tolist()}}
    result = computed(
        recipe, ["loss"], members=members, columns=columns, policy={"logprob": example.values["new"].tolist()}
    )
    return {"loss_term": result["loss"]}


@EXAMPLES.by("rewards at the ends of the steps")
def process(example: Example) -> Found:
    rewards = example.values["R"].tolist()
    recipe = recipes.GRPO.replace(
        advantage=(GroupRelative(column="reward", level="step", eps=0.0), Discounted(column="advantage"))
    )
    members = [
        {"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": 0, "steps": [{"reward": reward} for reward in rewards[:3]]},
        {"path": "1 | 3 ~ 9 | 4", "reward": 0, "steps": [{"reward": reward} for reward in rewards[3:]]},
    ]
    step_advantages = computed(recipe, ["step.advantage"], members=members)["step.advantage"]
    return {"advantage_first": step_advantages[:3], "advantage_second": step_advantages[3:]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
