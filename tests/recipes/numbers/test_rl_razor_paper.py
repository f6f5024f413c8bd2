"""Worked examples of the paper of rl_razor, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.loss import Reinforce

EXAMPLES = PaperExamples("rl_razor")
RL_RAZOR = recipes.RL_RAZOR


@EXAMPLES.by("forward and reverse KL of one distribution")
def divergences(example: Example) -> Found:
    """Each answer is one token without an advantage; the coefficient of the metric is that of the recipe."""
    price = RL_RAZOR.loss.kl.coefficient
    now, base, none = np.log(example.values["p"]), np.log(example.values["p0"]), np.zeros(1)
    priced = [
        single_tokens(given_advantages(RL_RAZOR), now[[at]], now[[at]], none, reference_logprob=base[[at]])["loss"]
        for at in range(len(now))
    ]
    return {"k3_by_answer": np.concatenate(priced) / price}


@EXAMPLES.by("one of three base samples has no score (convention)")
def reinforce(example: Example) -> Found:
    options = {"surrogate": Reinforce(), "clip": None, "kl": None, "aggregate": "constant", "constant": 1.0}
    losses = given_advantages(RL_RAZOR, **options)
    logprobs = [example.values["first"].tolist(), example.values["second"].tolist(), [-1.0]]
    rewards = [{"reward": float(reward)} for reward in example.values["R"]] + [{}]

    def loss(count: int) -> float:
        members = [
            {"path": f"1 | 3*{len(each)}", "logprobs": each, **reward}
            for each, reward in zip(logprobs[:count], rewards, strict=False)
        ]
        result = computed(
            losses, ["loss"], members=members, policy={"logprob": np.concatenate(logprobs[:count]).tolist()}
        )
        return float(result["loss"][0])

    return {"loss_of_reinforce": loss(3), "loss_of_a_group_of_one": loss(1)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
