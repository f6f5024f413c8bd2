"""Worked examples of the paper of steer, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.loss import ClipBounds, Mask, Tokens

EXAMPLES = PaperExamples("steer")
CommonExamples(EXAMPLES, recipes.STEER)
EXPONENTIAL = recipes.STEER.loss.mask
LINEAR = replace(EXPONENTIAL, kind="linear")


def weights(mask: Mask, old: Value, new: Value, entropies: Value, advantages: Value, trained: Any = 1.0) -> Value:
    """Return weights of tokens with these probabilities, entropies and advantages."""
    streams = {
        "weight_kl": np.ones(len(new)) * trained,
        "old_logprob": np.log(old),
        "advantage_positive": np.maximum(advantages, 0.0) * trained,
        "advantage_negative": np.minimum(advantages, 0.0) * trained,
    }
    logprobs, log_ratios = torch.from_numpy(np.log(new)), torch.from_numpy(np.log(new / old))
    tokens = Tokens(
        logprobs,
        torch.from_numpy(np.asarray(entropies)),
        {name: torch.from_numpy(each) for name, each in streams.items()},
    )
    positive, negative = mask(tokens, log_ratios, ClipBounds())
    assert torch.equal(positive, negative)
    return positive.numpy()


def trained(mask: Mask, old: Value, new: Value, entropies: Value, advantages: Value) -> Found:
    """Return loss, and its gradient by log-prob, of tokens with these probabilities, entropies and advantages."""
    members = [
        {**member, "logprobs": [float(logprob)]}
        for member, logprob in zip(answers([1] * len(old), advantages.tolist()), np.log(old), strict=True)
    ]
    return dict(
        computed(
            given_advantages(recipes.STEER, mask=mask),
            ["loss", "gradient.logprob"],
            members=members,
            policy={"logprob": np.log(new).tolist(), "entropy": entropies.tolist()},
        )
    )


@EXAMPLES.by("weights of five tokens, one from a tool")
def five(example: Example) -> Found:
    given = [example.values[name] for name in ("old", "pi", "H", "A", "mask")]
    return {
        "weight_linear": weights(LINEAR, *given)[:4],
        "weight_exponential": weights(EXPONENTIAL, *given)[:4],
    }


@EXAMPLES.by("tiny changes: the floor of 0.02")
def tiny(example: Example) -> Found:
    old, new, entropies = (example.values[name] for name in ("old", "pi", "H"))
    advantages = np.full(2, example.values["A"])
    code = replace(EXPONENTIAL, largest_at_least=0.02)
    return {
        "weight": weights(EXPONENTIAL, old, new, entropies, advantages),
        "weight_code": weights(code, old, new, entropies, advantages),
    }


@EXAMPLES.by("all changes equal")
def equal(example: Example) -> Found:
    """Entropies at which the changes are those of the example, at probabilities of 1/2."""
    half = np.full(3, 0.5)
    entropies = example.values["omega"] / half - np.log(half)
    return {"weight": weights(LINEAR, half, half, entropies, np.ones(3))}


@EXAMPLES.by("the loss of two responses of unequal length")
def unequal(example: Example) -> Found:
    """Entropies at which the changes of entropy give the weights of the example."""
    ratios, advantages, expected_weights = (example.values[name] for name in ("ratio", "A", "w"))
    new = np.full(5, 0.4)
    changes = np.log(expected_weights) / np.log(EXPONENTIAL.low)
    entropies = changes / (np.abs(advantages) * ratios * (1 - new)) - np.log(new)
    np.testing.assert_allclose(
        weights(EXPONENTIAL, new / ratios, new, entropies, advantages), expected_weights, rtol=1e-6
    )
    result = trained(EXPONENTIAL, new / ratios, new, entropies, advantages)
    return {"loss": result["loss"], "gradient_wrt_logp_times_tokens": 5 * result["gradient.logprob"]}


@EXAMPLES.by("the second optimizer step of a batch: weights are computed again")
def later_step(example: Example) -> Found:
    old, second, entropies, advantages = (example.values[name] for name in ("old", "second", "H", "A"))
    assert recipes.STEER.minibatches == 16
    return {
        "weight_first": weights(EXPONENTIAL, old, old, entropies, advantages),
        "weight_second": weights(EXPONENTIAL, old, second, entropies, advantages),
        "loss_second": trained(EXPONENTIAL, old, second, entropies, advantages)["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
