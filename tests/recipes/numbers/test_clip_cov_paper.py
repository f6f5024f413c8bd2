"""Worked examples of the paper of clip_cov, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, live_groups, single_tokens, weighted_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.loss import ClipBounds
from agentrl_core.loss.mask import score_of

EXAMPLES = PaperExamples("clip_cov")
CommonExamples(EXAMPLES, recipes.CLIP_COV)
MASK = recipes.CLIP_COV.loss.mask


def covariance(logprobs: Value, advantage_values: Value) -> Value:
    return score_of(weighted_tokens(logprobs, advantage_values), "covariance").numpy()


@EXAMPLES.by("covariances of four tokens")
def covariances(example: Example) -> Found:
    return {"covariance": covariance(example.values["lp"], example.values["A"])}


@EXAMPLES.by("covariances are of the current policy at each step")
def current(example: Example) -> Found:
    return {name: covariance(example.values[name], example.values["A"]) for name in ("first", "second")}


@EXAMPLES.by("loss with the first token chosen")
def chosen(example: Example) -> Found:
    new = np.array([-0.1, -4.0, -2.0])  # only the first one has a covariance above 0.5
    losses = given_advantages(recipes.CLIP_COV, mask=replace(MASK, low=0.5))
    return {"loss": single_tokens(losses, new - np.log(example.values["ratio"]), new, example.values["A"])["loss"]}


@EXAMPLES.by("KL-Cov")
def kl_cov(example: Example) -> Found:
    old, new, advantage_values = (example.values[name] for name in ("old", "new", "A"))
    return {
        "covariance": covariance(new, advantage_values),
        "loss": single_tokens(given_advantages(recipes.KL_COV), old, new, advantage_values)["loss"],
    }


@EXAMPLES.by("how many")
def count(example: Example) -> Found:
    def left_out(number: int) -> int:
        half = np.repeat([1.0, -1.0], number // 2)
        mask = MASK(weighted_tokens(2.0 * half - 3.0, half), torch.zeros(number), ClipBounds())[0]
        return int((mask == 0).sum())

    return {"clip_cov": np.array([left_out(int(number)) for number in example.values["N"]], float)}


@EXAMPLES.by("group advantages that enter A (GRPO)")
def groups(example: Example) -> Found:
    one, other = advantages(recipes.CLIP_COV, example.values["R_a"], example.values["R_b"])
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("groups that are all right or all wrong leave")
def filtered(example: Example) -> Found:
    return live_groups(recipes.CLIP_COV, example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
