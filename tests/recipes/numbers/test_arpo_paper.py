"""Worked examples of the paper of arpo, computed by the recipe."""

from __future__ import annotations

import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("arpo")
WEIGHTED = recipes.ARPO.replace(advantage=GroupRelative(center="none", scale="none"))
"""With the advantages of an example as scores."""


@EXAMPLES.by("a prefix shared by two of three leaves")
def shared(example: Example) -> Found:
    one, other, last = example.values["R"].tolist()
    members = [
        {"path": "1 | 3 ~ 9 | 4", "reward": one},
        {"fork": 0, "nodes": 3, "path": "| 5", "reward": other},
        {"path": "1 | 6", "reward": last},
    ]
    found = computed(recipes.ARPO.replace(shared="split"), ["draw.advantage", "gradient.logprob"], members=members)
    prefix, own = found["gradient.logprob"][:2]
    return {"advantage": found["draw.advantage"], "prefix_hard": found["draw.advantage"][0] * prefix / own}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    members = answers([1] * 4, [*example.values["R"].tolist(), float("nan")])
    found = computed(recipes.ARPO, ["draw.advantage"], members=members)["draw.advantage"]
    return {"advantage": [*found[:3], float("nan") if found[3] == 0 else found[3]]}  # 0: it has no loss


@EXAMPLES.by("the code's default")
def token_mean(example: Example) -> Found:
    members = [
        {"path": "1 | 3*6", "reward": reward, "trainable": example.values[mask].astype(int).tolist()}
        for reward, mask in zip(example.values["A"].tolist(), ("mask_a", "mask_b"), strict=True)
    ]
    found = computed(WEIGHTED, ["loss", "gradient.logprob"], members=members)
    weights = -found["gradient.logprob"][[0, 6]] / example.values["A"]
    return {"loss": found["loss"], "token_weight_a": weights[0], "token_weight_b": weights[1]}


@EXAMPLES.by("a ratio of 20 at a negative advantage: the dual clip")
def dual_clip(example: Example) -> Found:
    members = [
        {**answer, "logprobs": [old]}
        for answer, old in zip(answers([1] * 5, example.values["A"].tolist()), example.values["old"], strict=True)
    ]
    policy = {"logprob": example.values["new"].tolist()}
    return {"loss": computed(WEIGHTED, ["loss"], members=members, policy=policy)["loss"]}


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    members = answers([1] * 3, example.values["A"].tolist())
    policies = {step: {"logprob": example.values[step].tolist()} for step in ("first", "second")}
    found = {
        step: computed(WEIGHTED, ["loss", "gradient.logprob"], members=members, policy=policy)
        for step, policy in policies.items()
    }
    return {
        "first_loss": found["first"]["loss"],
        "second_loss": found["second"]["loss"],
        "second_has_gradient": found["second"]["gradient.logprob"] != 0,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
