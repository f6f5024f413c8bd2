"""Worked examples of the paper of april, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("april")
LOSSES = given_advantages(recipes.APRIL).replace(old_logprob="recomputed")


def counts(*groups: Value) -> Value:
    """Return whether each group fills a place of the batch."""
    numbers = np.repeat(np.arange(len(groups)), [len(each) for each in groups]).astype(np.uint32)
    return recipes.APRIL.admit(np.concatenate(groups), numbers)


def loss(sampler: Value, old: Value, new: Value, advantages: Value) -> Value:
    """Return the loss of answers of one token."""
    members: list[dict[str, Any]] = [
        {**member, "logprobs": [float(logprob)]}
        for member, logprob in zip(answers([1] * len(advantages), advantages.tolist()), sampler, strict=True)
    ]
    columns = {"token": {"recomputed_logprob": old.tolist()}}
    return computed(LOSSES, ["loss"], members=members, columns=columns, policy={"logprob": new.tolist()})["loss"]


@EXAMPLES.by("a filtered group makes room for more")
def filtered(example: Example) -> Found:
    return {"counts": counts(example.values["R0"], example.values["R1"])}


@EXAMPLES.by("a group of one is filtered")
def alone(example: Example) -> Found:
    assert not counts(example.values["R"][:1]).any()
    return {"counts": counts(example.values["R"])}


@EXAMPLES.by("a response of two policies")
def two_policies(example: Example) -> Found:
    advantages = np.full(4, float(example.values["A"]))
    sampler, old, new = (example.values[name] for name in ("sampler", "old", "new"))
    return {
        "loss": loss(sampler, old, new, advantages),
        "loss_if_the_sampler_were_the_base": loss(old, sampler, new, advantages),
    }


@EXAMPLES.by("samples of three tokens and of one")
def uneven(example: Example) -> Found:
    counts = example.values["n"].astype(int)
    members = answers(counts.tolist(), example.values["A"].tolist())
    columns = {"token": {"recomputed_logprob": [-1.0] * int(counts.sum())}}
    result = computed(LOSSES, ["loss", "gradient.logprob"], members=members, columns=columns)
    return {"loss": result["loss"], "gradient_of_a_token": result["gradient.logprob"][[0, -1]]}


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    old, second, advantages = (example.values[name] for name in ("old", "second", "A"))
    return {"loss": loss(old, old, second, advantages)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
