"""Worked examples of the paper of bapo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.loss import Clip, Tokens

EXAMPLES = PaperExamples("bapo")
CLIP = recipes.BAPO.loss.clip
AS_CODE = replace(CLIP, kind="odds", first="low", target=1.0)


def tokens(log_ratio: Value, advantages: Value) -> Tokens:
    """Return tokens with these log-ratios and advantages."""
    streams = {
        "weight_kl": np.ones(len(advantages)),
        "advantage_positive": np.maximum(advantages, 0.0),
        "advantage_negative": np.minimum(advantages, 0.0),
        "old_logprob": np.full(len(advantages), -1.0),
    }
    return Tokens(
        torch.from_numpy(log_ratio - 1.0), None, {name: torch.from_numpy(each) for name, each in streams.items()}
    )


def final_bounds(clip: Any, ratios: Value, advantages: Value) -> list[float]:
    """Return the final bounds of the search."""
    log_ratio = np.log(np.asarray(ratios))
    bounds = clip(tokens(log_ratio, np.asarray(advantages)), torch.from_numpy(log_ratio))
    return [float(bounds.lower), float(bounds.upper)]


def odds(ratios: Value, advantages: Value, low: float, high: float) -> float:
    """Return P / N in a range, found as the largest target that the range still reaches."""
    still, missed = 0.0, 10.0
    for _ in range(60):
        target = (still + missed) / 2
        fixed = replace(
            AS_CODE, low=low, low_at_most=low, high=high, high_at_most=high + 1.0, high_step=1.0, target=target
        )
        reached = final_bounds(fixed, ratios, advantages)[1] == pytest.approx(high)
        still, missed = (target, missed) if reached else (still, target)
    return still


@EXAMPLES.by("contributions at the starts")
def contributions(example: Example) -> Found:
    return {"odds": odds(example.values["r"], example.values["A"], 0.6, 1.2)}


@EXAMPLES.by("no search if the target is met")
def met(example: Example) -> Found:
    # Two tokens at ratio 1 that contribute P and -N.
    advantages = np.array([float(example.values["P"]), -float(example.values["N"])])
    by_odds = final_bounds(AS_CODE, np.ones(2), advantages) != pytest.approx([CLIP.low, CLIP.high])
    by_share = final_bounds(CLIP, np.ones(2), advantages) != pytest.approx([CLIP.low, CLIP.high])
    return {"search_by_odds_of_1": float(by_odds), "search_by_share": float(by_share)}


@EXAMPLES.by("c_high is searched first")
def high_first(example: Example) -> Found:
    given = example.values
    assert final_bounds(AS_CODE, given["r"], given["A"])[0] == pytest.approx(CLIP.low_at_most)
    return {"bounds": np.array(final_bounds(CLIP, given["r"], given["A"]))}


@EXAMPLES.by("both bounds at their ends")
def ends(example: Example) -> Found:
    given, old = example.values, np.full(4, -3.0)
    loss = single_tokens(given_advantages(recipes.BAPO), old, old + np.log(given["r"]), given["A"])["loss"]
    return {"bounds": np.array(final_bounds(CLIP, given["r"], given["A"])), "loss": loss}


@EXAMPLES.by("c_low raises N and not the odds")
def low(example: Example) -> Found:
    given = example.values
    return {f"odds_at_0_{at}": odds(given["r"], given["A"], at / 10, 1.2) for at in (6, 9)}


@EXAMPLES.by("loss at bounds 0.9 and 2.0")
def loss(example: Example) -> Found:
    fixed = given_advantages(recipes.BAPO, clip=Clip(0.1, 1.0, dual=3.0))
    old = np.full(4, -3.0)
    result = single_tokens(fixed, old, old + np.log(example.values["r"]), example.values["A"])
    return {"loss": result["loss"], "slope_by_log_prob": -4 * result["gradient.logprob"]}


@EXAMPLES.by("only positive advantages")
def positive(example: Example) -> Found:
    searched = final_bounds(CLIP, np.ones(1), np.array([float(example.values["P"])])) != pytest.approx(
        [CLIP.low, CLIP.high]
    )
    return {"searched": float(searched)}


@EXAMPLES.by("the second step starts again")
def again(example: Example) -> Found:
    del example
    hard, easy = (np.array([0.5, -0.5, -0.5]), np.array([0.5]))
    assert final_bounds(CLIP, np.ones(3), hard) == pytest.approx([CLIP.low_at_most, CLIP.high_at_most])
    return {"start": np.array(final_bounds(CLIP, np.ones(1), easy))}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
