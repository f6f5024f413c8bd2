"""Worked examples of the paper of aspo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipes.aspo import EntropyClip

EXAMPLES = PaperExamples("aspo")
CommonExamples(EXAMPLES, recipes.ASPO)
LOSSES = given_advantages(recipes.ASPO)


def slopes(log_ratios: Value, logprobs: Value, advantages: Value) -> Value:
    """Return gradients by the log-prob of each token, before averaging."""
    result = single_tokens(LOSSES, logprobs - log_ratios, logprobs, advantages)
    return result["gradient.logprob"] * len(advantages)


@EXAMPLES.by("weights of positive and negative tokens")
def weights(example: Example) -> Found:
    given = example.values
    signs = zip(("pos", "neg"), given["A"], strict=True)
    results = [slopes(given[f"d_{name}"], given[f"lp_{name}"], np.full(4, advantage)) for name, advantage in signs]
    return {"gradient_wrt_logp_positive": results[0], "gradient_wrt_logp_negative": results[1]}


@EXAMPLES.by("entropy bands of one response")
def bands(example: Example) -> Found:
    """The ranges of the authors' code, set as an option."""
    given = example.values
    logprobs = (given["d"] - 1.0).tolist()
    result = computed(
        given_advantages(recipes.ASPO, clip=EntropyClip()),
        ["gradient.logprob"],
        members=answers([5], [float(given["A"])]),
        columns={"token": {"reference_logprob": logprobs}},
        policy={"logprob": logprobs, "entropy": given["H"].tolist()},
    )
    return {"weight": -5 * result["gradient.logprob"] / given["A"]}


@EXAMPLES.by("the KL of three tokens")
def divergence(example: Example) -> Found:
    new, reference = example.values["new"], example.values["ref"]
    result = computed(
        LOSSES,
        ["loss"],
        members=[{**answers([3], [0.0])[0], "logprobs": new.tolist()}],
        columns={"token": {"reference_logprob": reference.tolist()}},
    )
    return {"loss_term": result["loss"]}


@EXAMPLES.by("the second optimizer step of a batch")
def later_step(example: Example) -> Found:
    second, advantages = example.values["second"], example.values["A"]
    results = [slopes(step, step - 1.0, advantages) for step in (np.zeros(4), second)]
    return {"weight_first": -results[0] / advantages, "weight_second": -results[1] / advantages}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
