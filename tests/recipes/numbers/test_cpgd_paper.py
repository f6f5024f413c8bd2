"""Worked examples of the paper of cpgd, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, path_of, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe
from agentrl_core.weight import SignalRescale

EXAMPLES = PaperExamples("cpgd")
ALONE = "a group of one"
CommonExamples(EXAMPLES, recipes.CPGD, but=[ALONE])
LOSSES = given_advantages(recipes.CPGD)


def slopes(log_ratios: Value, advantage_values: Value, losses: Recipe = LOSSES) -> Value:
    """Return gradients by the log-prob of each of these tokens, before averaging."""
    old = np.full(len(log_ratios), -1.0)
    return single_tokens(losses, old, old + log_ratios, advantage_values)["gradient.logprob"] * len(old)


@EXAMPLES.by("tokens of two responses, with the drift")
def drifting(example: Example) -> Found:
    given = example.values
    members = [
        {**answer, "logprobs": old.tolist()}
        for answer, old in zip(answers([3, 2], given["A"][[0, 3]].tolist()), np.split(given["old"], [3]), strict=True)
    ]
    names = ["loss", "gradient.logprob"]
    result = computed(LOSSES, names, members=members, policy={"logprob": given["new"].tolist()})
    return {"gradient_wrt_logp_before_averaging": 5 * result["gradient.logprob"], "loss": result["loss"]}


@EXAMPLES.by("the same in log-ratios, first step")
def first_step(example: Example) -> Found:
    old = np.full(2, -1.0)
    new = old + example.values["d"]
    objectives = [single_tokens(LOSSES, old[[at]], new[[at]], example.values["A"][[at]])["loss"] for at in range(2)]
    return {
        "value": -np.concatenate(objectives),
        "gradient_wrt_logp_before_averaging": slopes(example.values["d"], example.values["A"]),
    }


@EXAMPLES.by("the drift capped at 2 and at 0.2")
def capped(example: Example) -> Found:
    drift = recipes.CPGD.loss.drift
    other = given_advantages(recipes.CPGD, drift=replace(drift, slope_at_most=2.0))
    log_ratios, none = example.values["d"], np.zeros(3)
    return {
        "factor_readme": slopes(log_ratios, none) / drift.coefficient,
        "factor_siirl": slopes(log_ratios, none, other) / drift.coefficient,
    }


@EXAMPLES.by("clip-filter-like weights of four prompts, three without difference")
def filtered(example: Example) -> Found:
    """The second choice of weights, set as an option."""
    recipe = recipes.CPGD.replace(advantage=GroupRelative(scale="none"), weight=SignalRescale(at_most=3.0))
    groups = [example.values["R"].tolist(), [1.0] * 4, [0.0] * 4, [1.0] * 4]
    assert len(groups) == example.values["prompts"]
    members = [
        {**answer, "group": f"{place}"} for place, rewards in enumerate(groups) for answer in answers([1] * 4, rewards)
    ]
    result = computed(recipe, ["draw.advantage", "draw.weight"], members=members)
    return {"advantage": (result["draw.advantage"] * result["draw.weight"])[:4]}


@EXAMPLES.by(ALONE)
def alone(example: Example) -> Found:
    raw = recipes.CPGD.replace(advantage=replace(recipes.CPGD.advantage, singleton="raw"))
    return {"advantage": advantages(raw, [float(example.values["R"])])[0]}


@EXAMPLES.by("two rollouts of a prompt with tool tokens: by token and by response")
def tool_tokens(example: Example) -> Found:
    masks = [example.values[f"mask_{name}"] for name in "ab"]
    members = [
        {"path": path_of(mask), "reward": reward}
        for mask, reward in zip(masks, example.values["A"].tolist(), strict=True)
    ]
    by_response, results = given_advantages(recipes.CPGD, aggregate="sequence_mean"), {}
    for end, losses in (("", LOSSES), ("_by_response", by_response)):
        gradient = computed(losses, ["gradient.logprob"], members=members)["gradient.logprob"]
        for name, mask, token_gradients in zip("ab", masks, np.split(gradient, [int(masks[0].sum())]), strict=True):
            placed = np.zeros(len(mask))
            placed[mask > 0] = token_gradients
            results[f"gradient_{name}{end}"] = placed
    return results


@EXAMPLES.by("a second pass: clip and drift act")
def second_pass(example: Example) -> Found:
    assert recipes.CPGD.minibatches == 8
    second, advantage_values = example.values["second"], example.values["A"]
    return {
        "first_gradient": slopes(np.zeros(3), advantage_values),
        "second_gradient": slopes(second, advantage_values),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
