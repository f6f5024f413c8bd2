"""Worked examples of the paper of m2po, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, one_rollout, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.loss import Clip, ClipBounds, Tokens
from agentrl_core.recipes.m2po import SecondMomentClip, SecondMomentMask

EXAMPLES = PaperExamples("m2po")
ALONE = "a group of one"
CommonExamples(EXAMPLES, recipes.M2PO, but=[ALONE])
CLIP = SecondMomentClip()
LOSSES = given_advantages(recipes.M2PO)
CAPPED = {"mask": None, "clip": CLIP}


def tokens(log_ratio: Value, advantage_values: Value) -> Tokens:
    """Return tokens with these log-ratios and advantages."""
    streams = {
        "weight_kl": np.ones(len(advantage_values)),
        "advantage_positive": np.maximum(advantage_values, 0.0),
        "advantage_negative": np.minimum(advantage_values, 0.0),
        "old_logprob": np.full(len(advantage_values), -1.0),
    }
    return Tokens(
        torch.from_numpy(log_ratio - 1.0), None, {name: torch.from_numpy(each) for name, each in streams.items()}
    )


def bounds(clip: Any, squares: Value) -> ClipBounds:
    """Return the range for good tokens that have each moved further, by the roots of these squares."""
    ratios = np.sqrt(squares)
    return clip(tokens(ratios, np.ones(len(squares))), torch.from_numpy(ratios))


def has_gradient(log_ratios: Value) -> Value:
    """Return which tokens of good one-token responses have a gradient."""
    old = np.full(len(log_ratios), -1.0)
    return single_tokens(LOSSES, old, old + log_ratios, np.ones(len(old)))["gradient.logprob"] != 0


@EXAMPLES.by("which tokens count")
def counts(example: Example) -> Found:
    # With no budget every token that counts exceeds it, and loses its gradient.
    ratios, advantage_values = example.values["log_r"], example.values["A"]
    old = np.full(len(advantage_values), -1.0)
    results = []
    for options in ({"mask": SecondMomentMask(1e-12)}, {**CAPPED, "clip": replace(CLIP, at_most=1e-12)}):
        losses = given_advantages(recipes.M2PO, **options)
        results.append(single_tokens(losses, old, old + ratios, advantage_values)["gradient.logprob"] == 0)
    np.testing.assert_array_equal(*results)
    return {"counts": results[0]}


@EXAMPLES.by("which tokens are masked")
def masked(example: Example) -> Found:
    given = example.values
    away, own_tokens = given["log_r"], given["own"]
    result = one_rollout(LOSSES, np.full(len(away), -4.0), away - 4.0, given["A"], own_tokens)
    gradient = np.zeros(len(own_tokens))
    gradient[own_tokens > 0] = result["gradient.logprob"]
    return {"objective": -result["loss"], "gradient": gradient, "mask": gradient != 0}


@EXAMPLES.by("the mask goes on until the rest fits")
def goes_on(example: Example) -> Found:
    return {"mask": has_gradient(example.values["log_r"])}


@EXAMPLES.by("the mask keeps a token that the cap does not")
def keeps(example: Example) -> Found:
    away = example.values["log_r"]
    return {"mask": has_gradient(away), "tau": np.log(float(bounds(CLIP, away**2).upper))}


@EXAMPLES.by("the threshold of a batch")
def threshold(example: Example) -> Found:
    result = bounds(CLIP, example.values["d"])
    return {"tau": np.log(float(result.upper)), "bounds": np.array([float(result.lower), float(result.upper)])}


@EXAMPLES.by("within the budget nothing is bounded")
def within(example: Example) -> Found:
    squares = np.maximum(example.values["d"], 1e-12)  # a token at ratio 1 would not count
    result = bounds(CLIP, squares)
    old = np.full(len(squares), -1.0)
    losses = LOSSES, given_advantages(recipes.M2PO, **CAPPED)
    sums = [3 * single_tokens(each, old, old + np.sqrt(squares), np.ones(3))["loss"] for each in losses]
    np.testing.assert_allclose(sums[0], sums[1])
    return {"within": float(np.isinf(float(result.upper))), "loss": sums[0] + np.exp(np.sqrt(squares[:2])).sum()}


@EXAMPLES.by("all beyond the budget")
def beyond(example: Example) -> Found:
    return {"tau": np.log(float(bounds(CLIP, example.values["d"]).upper))}


@EXAMPLES.by("loss of four tokens")
def four(example: Example) -> Found:
    old = np.full(4, -1.0)
    tau = float(example.values["tau"])
    fixed = given_advantages(recipes.M2PO, mask=None, clip=Clip(tau, tau, scale="log"))
    result = single_tokens(fixed, old, old + example.values["log_r"], example.values["A"])
    return {"loss": result["loss"], "has_gradient": result["gradient.logprob"] != 0}


@EXAMPLES.by("floors, when they are on")
def floors(example: Example) -> Found:
    # Squares whose second value, 0.2 ** 2, is the threshold.
    del example
    result = bounds(replace(CLIP, narrowest=Clip(0.3, 0.5)), np.array([0.01, 0.04, 0.09, 0.25]))
    return {"low": 1.0 - float(result.lower), "high": float(result.upper) - 1.0}


@EXAMPLES.by(ALONE)
def alone(example: Example) -> Found:
    raw = recipes.M2PO.replace(advantage=replace(recipes.M2PO.advantage, singleton="raw"))
    return {"advantage": advantages(raw, [float(example.values["R"])])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
