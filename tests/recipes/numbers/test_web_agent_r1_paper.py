"""Worked examples of the paper of web_agent_r1, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("web_agent_r1")
CommonExamples(EXAMPLES, recipes.WEB_AGENT_R1)


@EXAMPLES.by("a turn-averaged objective")
def turns(example: Example) -> Found:
    advantages = example.values["A"].tolist()
    result = computed(
        given_advantages(recipes.WEB_AGENT_R1),
        ["loss", "gradient.logprob"],
        members=[
            {"path": "1 | 3*2 ~ 9 | 4*4", "reward": advantages[0]},
            {"path": "1 | 5*3", "reward": advantages[1]},
        ],
        columns={"token": {"reference_logprob": [-1.0] * 9}},
    )
    return {"objective": -result["loss"], "weight": np.abs(result["gradient.logprob"][[0, 2, 6]])}


@EXAMPLES.by("the first step has ratio 1 and its KL")
def first(example: Example) -> Found:
    new, reference = example.values["new"].tolist(), example.values["ref"].tolist()
    result = computed(
        given_advantages(recipes.WEB_AGENT_R1),
        ["loss"],
        members=[{**answers([2], [float(example.values["A"])])[0], "logprobs": new}],
        columns={"token": {"reference_logprob": reference}},
        policy={"logprob": new},
    )
    return {"loss": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
