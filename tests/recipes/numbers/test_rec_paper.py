"""Worked examples of the paper of rec, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, one_rollout, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import BaselineRelative, GroupRelative
from agentrl_core.loss import Clip, InBounds, Ratio, Reinforce
from agentrl_core.reward import OutcomeScore
from agentrl_core.reward.outcome import DropSurplus

EXAMPLES = PaperExamples("rec")
CommonExamples(EXAMPLES, recipes.REC)
LOSSES = given_advantages(recipes.REC)
WEIGHTED = Reinforce("ratio", "ratio")
RESPONSES: dict[str, Any] = {"ratio": Ratio("sequence"), "clip": Clip(3e-4, 4e-4), "aggregate": "sequence_mean"}


@EXAMPLES.by("advantages of groups of five and of two")
def groups(example: Example) -> Found:
    five, two = advantages(recipes.REC, example.values["R"], example.values["S"])
    return {"five": five, "two": two}


@EXAMPLES.by("five tokens in four kinds of range")
def ranges(example: Example) -> Found:
    new = np.full(len(example.values["A"]), -2.0)
    old = new - np.log(example.values["ratio"])
    kinds = {"one_side": LOSSES} | {
        name: given_advantages(recipes.REC, mask=mask)
        for name, mask in (("two_side", InBounds("two_sided")), ("ring", InBounds("ring")))
    }
    results = {name: one_rollout(recipe, old, new, example.values["A"]) for name, recipe in kinds.items()}
    return {name: each["gradient.logprob"] != 0 for name, each in results.items()}


@EXAMPLES.by("losses with and without importance sampling")
def losses(example: Example) -> Found:
    given = example.values
    results: Found = {}
    for end, recipe in (("no_is", LOSSES), ("is", given_advantages(recipes.REC, surrogate=WEIGHTED))):
        numbers = one_rollout(recipe, given["lp"] - np.log(given["ratio"]), given["lp"], given["A"], given["m"])
        results[f"loss_{end}"] = numbers["loss"]
        results[f"gradient_{end}"] = np.append(-numbers["gradient.logprob"], 0.0)  # the tool's token, which has no row
    return results


@EXAMPLES.by("the response-level variant")
def responses(example: Example) -> Found:
    given = example.values
    new = np.concatenate([given["lp_a"], given["lp_b"]])
    old = new - np.concatenate([given["d_a"], given["d_b"]])
    count = len(given["lp_a"])
    members = answers([count, 1], [float(given["A_a"]), float(given["A_b"])])
    for member, logprobs in zip(members, np.split(old, [count]), strict=True):
        member["logprobs"] = logprobs.tolist()

    def compute(**options: Any) -> dict[str, Value]:
        recipe = given_advantages(recipes.REC, **RESPONSES, **options)
        names = ["loss", "gradient.logprob"]
        return dict(computed(recipe, names, members=members, policy={"logprob": new.tolist()}))

    plain, free = compute(), compute(surrogate=WEIGHTED, mask=None)["gradient.logprob"]
    return {
        "ratio_a": -2 * count * free[:1] / given["A_a"],
        "ratio_b": -2 * free[-1:] / given["A_b"],
        "in_range": plain["gradient.logprob"][[0, -1]] != 0,
        "loss": plain["loss"],
        "loss_is": compute(surrogate=WEIGHTED)["loss"],
    }


@EXAMPLES.by("drop: one right and four wrong keep one of each")
def dropped(example: Example) -> Found:
    right, wrong = example.values["kept"].tolist()
    result = _dropping([right, *[wrong] * 4])
    return {"advantage": np.concatenate([result[:1], np.sort(result[1:])])}  # one of the wrong ones, at random


@EXAMPLES.by("drop: all wrong count as positive, nothing is dropped")
def kept(example: Example) -> Found:
    return {"advantage": _dropping(example.values["R"].tolist())}


def _dropping(rewards: list[float]) -> Value:
    recipe = recipes.REC.replace(reward=(OutcomeScore(), DropSurplus()))
    return computed(recipe, ["draw.advantage"], members=answers([1] * len(rewards), rewards))["draw.advantage"]


@EXAMPLES.by("other baselines")
def baselines(example: Example) -> Found:
    given = example.values
    opmd = BaselineRelative(kind="log_mean_exp", temperature=float(given["tau"]))
    shifted = GroupRelative(scale="none", shift=0.1)
    topr = given_advantages(recipes.REC, surrogate=Reinforce("one", "ratio", at_most=1.0), mask=None)
    new = np.full(2, -1.0)
    slopes = single_tokens(topr, new - np.log(given["ratio"]), new, given["A"])["gradient.logprob"]
    return {
        "asymre": advantages(recipes.REC.replace(advantage=shifted), given["R"])[0],
        "opmd": advantages(recipes.REC.replace(advantage=opmd), given["R"])[0],
        "topr_weight": -2 * slopes / given["A"],
    }


@EXAMPLES.by("a later step on the same samples masks, without a change of weight")
def later_step(example: Example) -> Found:
    given = example.values
    gradient = single_tokens(LOSSES, given["old"], given["second"], given["A"])["gradient.logprob"]
    return {"in_range": gradient != 0, "gradient": -gradient}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
