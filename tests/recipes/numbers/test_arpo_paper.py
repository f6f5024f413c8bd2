"""Worked examples of the paper of arpo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import _core, recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("arpo")
COMMON = CommonExamples(EXAMPLES, recipes.ARPO)
BRANCHING = recipes.ARPO.rollout
DUAL = "a ratio of 20 at a negative advantage: the dual clip"


def entropy(tokens: Value, vocabulary: int) -> Value:
    offsets = np.array([0, len(tokens)])
    return _core.rollout.segment_entropy(tokens.astype(np.float32), offsets, BRANCHING.tokens, vocabulary)


@EXAMPLES.by("probability to branch in the code")
def probability(example: Example) -> Found:
    uniform = (np.arange(1000) + 0.5) / 1000
    shares = [
        _core.rollout.entropy_branches(
            np.zeros(1000, np.uint32),
            np.full(1000, change),
            np.zeros(1000),
            uniform,
            np.zeros(1, np.uint32),
            budget=2000,
            beam=BRANCHING.beam,
            probability=BRANCHING.probability,
            entropy_weight=BRANCHING.entropy_weight,
        ).mean()
        for change in example.values["dH"]
    ]
    return {"probability": np.array(shares)}


@EXAMPLES.by("entropy of two tokens in the code")
def code_entropy(example: Example) -> Found:
    tokens = np.array([-np.sum(given * np.log(given)) for given in (example.values["p1"], example.values["p2"])])
    return {"entropy": entropy(tokens, int(example.values["V"]))}


@EXAMPLES.by("a prefix shared by two of three leaves")
def leaves(example: Example) -> Found:
    return {"advantage": advantages(recipes.ARPO, example.values["R"])[0]}


@EXAMPLES.by("soft: gradient weight of the shared prefix")
def soft(example: Example) -> Found:
    losses = given_advantages(recipes.ARPO)

    def weight(other: int) -> Value:
        first, second, third = example.values["A"].tolist()
        members = [
            {"path": "1 | 3*2 ~ 9 | 4*2", "reward": first},
            {"fork": 0, "nodes": 3, "path": f"| 5*{other - 2}", "reward": second},
            {"path": "1 | 6*4", "reward": third},
        ]
        return -computed(losses, ["gradient.logprob"], members=members)["gradient.logprob"][:1]

    return {"weight": weight(int(example.values["n"][1])), "weight_at_equal_lengths": weight(4)}


@EXAMPLES.by("equation 6")
def objective(example: Example) -> Found:
    return COMMON.tool_tokens(example)


@EXAMPLES.by("the code's default")
def code_default(example: Example) -> Found:
    return COMMON.tool_tokens(example, given_advantages(recipes.ARPO, aggregate="token_mean"))


@EXAMPLES.by(DUAL)
def dual(example: Example) -> Found:
    return COMMON.off_policy(example)


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    members = answers([1] * 3, example.values["A"].tolist())
    weighted = recipes.ARPO.replace(advantage=GroupRelative(center="none", scale="none"), minibatches=1)
    results = {
        step: computed(
            weighted, ["loss", "gradient.logprob"], members=members, policy={"logprob": example.values[step].tolist()}
        )
        for step in ("first", "second")
    }
    return {
        "first_loss": results["first"]["loss"],
        "second_loss": results["second"]["loss"],
        "second_has_gradient": results["second"]["gradient.logprob"] != 0,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
