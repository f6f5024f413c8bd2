"""Worked examples of the paper of sapo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, one_rollout, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("sapo")
CommonExamples(EXAMPLES, recipes.SAPO, but=["one rollout of four has no score (convention)"])
LOSSES = given_advantages(recipes.SAPO)
ONE_STEP = recipes.SAPO.replace(minibatches=1)


def single_token_losses(log_ratios: Value, advantage_values: Value) -> tuple[Value, Value]:
    """Return losses of tokens, each a rollout of its own batch, and their gradients by log-prob."""
    pairs = zip(np.atleast_1d(log_ratios), np.broadcast_to(advantage_values, np.shape(log_ratios)), strict=True)
    results = [
        single_tokens(LOSSES, np.array([-3.0]), np.array([away - 3.0]), np.array([each])) for away, each in pairs
    ]
    return tuple(np.concatenate([each[name] for each in results]) for name in ("loss", "gradient.logprob"))


@EXAMPLES.by("gate by sign of the advantage")
def gates(example: Example) -> Found:
    away = np.log(example.values["r"])
    return {
        "gate_positive_advantage": -single_token_losses(away, np.array(1.0))[0],
        "gate_negative_advantage": single_token_losses(away, np.array(-1.0))[0],
        "loss_of_zero_advantage": single_token_losses(np.log([1.3]), np.array(0.0))[0],
    }


@EXAMPLES.by("gradient by log-probability, nowhere cut")
def gradients(example: Example) -> Found:
    results: Found = {}
    for name in ("positive", "negative"):
        advantage_values = example.values[f"A_{name[:3]}"]
        gradient = single_token_losses(np.log(example.values["r"]), advantage_values)[1]
        results[f"gradient_{name}_advantage"] = gradient
        results[f"weight_{name}_advantage"] = -gradient / (example.values["r"] * advantage_values)
    return results


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    members = [*answers([2, 1, 3], example.values["R"].tolist()), {"path": "1 | 3"}]
    result = computed(ONE_STEP, ["loss"], members=members)
    return {"advantage": advantages(recipes.SAPO, [*example.values["R"], np.nan])[0], "loss": result["loss"]}


@EXAMPLES.by("loss of three responses of unequal length")
def three_responses(example: Example) -> Found:
    given = example.values
    away = [given[f"d_{name}"] for name in "abc"]
    members = answers([len(each) for each in away], given["R"].tolist())
    policy = {"logprob": (np.concatenate(away) - 1.0).tolist()}
    result = computed(ONE_STEP, ["draw.advantage", "loss"], members=members, policy=policy)
    of_tokens = {
        f"loss_by_token_{name}": single_token_losses(each, advantage)[0]
        for name, each, advantage in zip("abc", away, result["draw.advantage"], strict=True)
    }
    return {"advantage": result["draw.advantage"], "loss": result["loss"], **of_tokens}


@EXAMPLES.by("groups of three and of two share a batch")
def two_groups(example: Example) -> Found:
    ratios, advantage_values = (
        np.concatenate([example.values[name] for name in names]) for names in (("r_a", "r_b"), "AB")
    )
    old = np.full(len(advantage_values), -1.0)
    return {"loss_by_response": single_tokens(LOSSES, old, old + np.log(ratios), advantage_values)["loss"]}


@EXAMPLES.by("two turns with a tool's answer between")
def two_turns(example: Example) -> Found:
    away, mask = example.values["d"], example.values["mask"]
    result = one_rollout(LOSSES, np.full(len(away), -1.0), away - 1.0, np.full(len(away), example.values["A"]), mask)
    gradient = np.zeros(len(away))
    gradient[mask > 0] = result["gradient.logprob"]
    return {"loss": result["loss"], "gradient_by_token": gradient}


@EXAMPLES.by("the second optimizer step of a batch attenuates")
def second_step(example: Example) -> Found:
    given, results = example.values, {}
    for name in ("first", "second"):
        step = single_tokens(LOSSES, given["old"], given[name], given["A"])
        results |= {f"{name}_loss": step["loss"], f"{name}_gradient": step["gradient.logprob"]}
    return results


@EXAMPLES.by("one token far off the policy")
def far_off(example: Example) -> Found:
    away, count = example.values["z"], len(example.values["z"])
    advantage_values = np.full(count, example.values["A"])
    gradient = one_rollout(LOSSES, np.full(count, -4.0), away - 4.0, advantage_values)["gradient.logprob"]
    return {"gradient_by_token": gradient, "weight": -count * gradient / (np.exp(away) * advantage_values)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
