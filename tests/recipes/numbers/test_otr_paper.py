"""Worked examples of the paper of otr, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import Riddles, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.recipes.otr import OneToken

EXAMPLES = PaperExamples("otr")


def candidates(logprobs: Value, right: Value, counts: Sequence[int] | None = None) -> Found:
    """Return rewards, loss and gradients of different candidates of a token, each sampled once by default."""
    counts = [1] * len(logprobs) if counts is None else counts
    members = [
        {
            "path": "1 | 3",
            "reward": 7,
            "success": bool(is_right),
            "logprobs": [-9.0],  # of the sampling policy, at another temperature: there is no ratio
            "temperature": 1.3,
            "facts": {"count": int(count)},
        }
        for is_right, count in zip(right, counts, strict=True)
    ]
    names = ["draw.advantage", "token.inverse_temperature", "loss", "gradient.logprob"]
    return dict(computed(recipes.OTR, names, members=members, policy={"logprob": logprobs.tolist()}))


@EXAMPLES.by("five candidates, two of them right, one wrong token twice")
def five(example: Example) -> Found:
    """Compare separate rows of candidates with counts of equal ones."""
    given = example.values
    each = candidates(given["lp"], given["right"])
    counted = candidates(given["lp"][[0, 2, 4]], given["right"][[0, 2, 4]], [2, 2, 1])
    np.testing.assert_allclose(counted["loss"], each["loss"], rtol=1e-6)
    return {"reward": each["draw.advantage"], "loss": counted["loss"]}


@EXAMPLES.by("the right token was not sampled: only pushes away")
def pushes(example: Example) -> Found:
    logprobs = example.values["lp"]
    result = candidates(logprobs, np.zeros(len(logprobs)))
    return {"loss": result["loss"], "gradient_of_log_probability_of_first": result["gradient.logprob"][:1]}


@EXAMPLES.by("one candidate")
def one(example: Example) -> Found:
    logprob = np.atleast_1d(example.values["lp"])
    return {
        "loss_if_right": candidates(logprob, np.ones(1))["loss"],
        "loss_if_wrong": candidates(logprob, np.zeros(1))["loss"],
    }


@EXAMPLES.by("candidates are sampled at 1.3 and scored at 1, without a ratio")
def temperatures(example: Example) -> Found:
    """The engine returns candidates at one temperature; the loss divides logits by another."""
    logits = example.values["logits"]
    requested_temperatures: list[float] = []

    def speak(context: str, request: Request) -> str:
        del context
        requested_temperatures.append(request.sampling.temperature)
        return "a"

    program = recipes.OTR.rollout
    assert isinstance(program, OneToken)
    solve(recipes.OTR.replace(rollout=OneToken(2, program.temperature)), speak, world=Riddles(("abc",)))

    def probabilities(temperature: float) -> Value:
        return np.exp(logits / temperature) / np.exp(logits / temperature).sum()

    result = candidates(np.log(probabilities(1.0)), np.array([1, 0, 0]), example.values["counts"].tolist())
    return {
        "sampling": probabilities(requested_temperatures[0]),
        "scoring": probabilities(1.0 / float(result["token.inverse_temperature"][0])),
        "loss": result["loss"],
    }


@EXAMPLES.by("mean over the response tokens of two rows of unequal length")
def rows(example: Example) -> Found:
    """A token whose loss is x has one candidate, which is right and has the log-prob -x."""
    losses = np.concatenate([example.values["a"], example.values["b"]])
    return {"loss": candidates(-losses, np.ones(len(losses)))["loss"]}


@EXAMPLES.by("a second step samples anew")
def anew(example: Example) -> Found:
    given = example.values
    return {
        "first_loss": candidates(given["first"], given["right_1"])["loss"],
        "second_loss": candidates(given["second"], given["right_2"])["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
