"""Worked examples of the paper of exo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("exo")
BETA = recipes.EXO.loss.beta


def matched(
    *groups: tuple[Sequence[Sequence[float]], Sequence[float]], old: Value | None = None, **options: Any
) -> Mapping[str, Value]:
    """Return loss, and its gradient by the log-prob of each answer, of groups of token log-ratios and rewards.

    Args:
        groups: log-ratios and rewards; an unknown reward is nan.
        old: log-probs of the sampler, of answers of one token.
        options: replacements for options of the loss.
    """
    members = [
        {**({"path": answer["path"]} if np.isnan(answer["reward"]) else answer), "group": str(place)}
        for place, (away, rewards) in enumerate(groups)
        for answer in answers([len(tokens) for tokens in away], [float(reward) for reward in rewards])
    ]
    if old is not None:
        members = [{**member, "logprobs": [logprob]} for member, logprob in zip(members, old, strict=True)]
    lengths = [len(tokens) for away, _ in groups for tokens in away]
    away = np.concatenate([np.ravel(tokens) for away, _ in groups for tokens in away])
    result = computed(
        recipes.EXO.replace(loss=replace(recipes.EXO.loss, **options)),
        ["loss", "gradient.logprob"],
        members=members,
        columns={"token": {"reference_logprob": (-4.0 - away).tolist()}},
        policy={"logprob": [-4.0] * len(away)},
    )
    firsts = np.cumsum([0, *lengths[:-1]])
    return {"loss": result["loss"], "gradient": result["gradient.logprob"][firsts]}


def distributions(
    away: Sequence[Sequence[float]], rewards: Sequence[float], old: Value | None = None
) -> tuple[Value, Value]:
    """Return P and Q of a group, each from the forward gradient beta (P - Q) while the other one is uniform."""
    known = np.isfinite(rewards)
    even = np.where(known, 1.0 / known.sum(), np.nan)
    policy = matched((away, np.where(known, 0.0, np.nan)), old=old, direction="forward")["gradient"]
    target = matched(([np.zeros(len(tokens)) for tokens in away], rewards), direction="forward")["gradient"]
    assert not policy[~known].any()
    return even + policy / BETA, even - target / BETA


@EXAMPLES.by("three responses with rewards, lengths three, one and two")
def three(example: Example) -> Found:
    given = example.values
    away, rewards = [given["d1"], given["d2"], given["d3"]], given["r"]
    policy, target = distributions(away, rewards)
    result = matched((away, rewards))
    return {
        "policy": policy,
        "target": target,
        "loss": result["loss"],
        "loss_of_dpo_rw": matched((away, rewards), direction="forward")["loss"],
        "slope_in_log_probability": result["gradient"],
    }


@EXAMPLES.by("a pair with the smoothed target")
def pair(example: Example) -> Found:
    away, rewards = (example.values["x"] / BETA)[:, None], [1.0, 0.0]
    return {
        "policy": distributions(away, rewards)[0],
        "loss_with_normalised_target": matched((away, rewards), temperature=0.1)["loss"],
        "loss_of_dpo": matched((away, rewards), direction="forward", temperature=1e-3)["loss"],
    }


@EXAMPLES.by("prompts of three and of two responses")
def prompts(example: Example) -> Found:
    given = example.values
    temperature = recipes.EXO.loss.temperature
    one, other = (
        ((np.log(given[policy]) / BETA)[:, None], np.log(given[target]) * temperature)
        for policy, target in ("PQ", "ST")
    )
    losses = [matched(each)["loss"] for each in (one, other)]
    both = matched(one, other)["loss"]
    return {"loss_a": losses[0], "loss_b": losses[1], "loss": both}


@EXAMPLES.by("a prompt with one response")
def alone(example: Example) -> Found:
    return {"loss": matched((example.values["x"][:, None] / BETA, example.values["r"]))["loss"]}


@EXAMPLES.by("responses of another policy have no ratio of their own")
def sampled(example: Example) -> Found:
    given = example.values
    return {"policy": distributions((given["new"] - given["ref"])[:, None], [0.0, 1.0], old=given["sampler"])[0]}


@EXAMPLES.by("two optimizer steps")
def steps(example: Example) -> Found:
    results = [matched((example.values[name][:, None], example.values["r"]))["loss"] for name in ("first", "second")]
    return {"loss_1": results[0], "loss_2": results[1]}


@EXAMPLES.by("one response of three has no reward (convention)")
def unscored(example: Example) -> Found:
    given = example.values
    policy, target = distributions([*(given["x"] / BETA)[:, None], [0.7]], [*given["r"], np.nan])
    return {"terms": policy * (np.log(policy) - np.log(target))}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
