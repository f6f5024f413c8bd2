"""Worked examples of the paper of vcpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipes.vcpo import GradientSquare

EXAMPLES = PaperExamples("vcpo")
VCPO = recipes.VCPO
SCALE = VCPO.hooks
SQUARE, BASELINE, SPREAD = VCPO.chain("advantage")


def group(
    rewards: Value,
    norms: Value,
    log_weights: Sequence[Value] | None = None,
    names: Sequence[str] = ("draw.advantage",),
    **replaced: object,
) -> Mapping[str, Value]:
    """Return numbers of a group with these gradient norms and log-weights of tokens; a score of `nan` is unknown."""
    log_weights = [np.zeros(1)] * len(rewards) if log_weights is None else log_weights
    members = answers([len(each) for each in log_weights], rewards.tolist())
    members = [
        {name: value for name, value in member.items() if name != "reward" or np.isfinite(value)} for member in members
    ]
    columns = {
        "draw": {"gradient_norm": norms.tolist()},
        "token": {"recomputed_logprob": (np.concatenate(log_weights) - 1.0).tolist()},
    }
    return computed(VCPO.replace(**replaced), names, members=members, columns=columns)


@EXAMPLES.by("effective sample size of four rollouts")
def sample_size(example: Example) -> Found:
    logw = example.values["logw"]
    result = group(np.ones(4), np.ones(4), logw[:, None], ["draw.importance", "token.weight"])
    factor = SCALE.factor(result["draw.importance"])
    return {
        "weight": result["draw.importance"],
        "weight_in_loss": result["token.weight"],
        "ratio": np.array(factor**2),
    }


@EXAMPLES.by("baselines of a group")
def baselines(example: Example) -> Found:
    given, results = example.values, {}
    rewards = given["R"]
    for name, square in (("baseline", GradientSquare(at_most=8.0)), ("baseline_of_the_paper", SQUARE)):
        advantage = (square, BASELINE)
        centred = group(rewards, given["score"], np.log(given["w"])[:, None], advantage=advantage)["draw.advantage"]
        results[name] = (rewards - centred)[0]
    return results


@EXAMPLES.by("coefficients of the gradient")
def coefficients(example: Example) -> Found:
    given = example.values
    b = float(given["b"])
    norms = np.sqrt(np.where(given["R"] > 0, b, 1 - b)) / given["w"]  # two of each: the weighted mean is b
    log_weights = [
        np.full(int(length), np.log(weight) / length) for length, weight in zip(given["L"], given["w"], strict=True)
    ]
    gradient = group(given["R"], norms, log_weights, ["gradient.logprob"])["gradient.logprob"]
    firsts = np.cumsum([0, *given["L"][:-1].astype(int)])
    return {"coefficient_of_token_score": -gradient[firsts]}


@EXAMPLES.by("a group of equal rewards")
def equal(example: Example) -> Found:
    given = example.values
    norms = np.sqrt(given["W"])
    return {
        "coefficient": group(given["R"], norms)["draw.advantage"],
        "baseline": (given["R"] - group(given["R"], norms, advantage=(SQUARE, BASELINE))["draw.advantage"])[0],
    }


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    reward, square = (np.atleast_1d(example.values[name]) for name in "RW")
    return {"coefficient": group(reward, np.sqrt(square))["draw.advantage"]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    rewards, squares = (np.append(example.values[name], last) for name, last in (("R", np.nan), ("W", 5.0)))
    advantages = group(rewards, np.sqrt(squares))["draw.advantage"]
    assert advantages[3] == 0
    return {"advantage": np.append(advantages[:3], np.nan)}


@EXAMPLES.by("a rollout of two turns with tool tokens")
def turns(example: Example) -> Found:
    log_ratios = example.values["d"][example.values["mask"] > 0]
    result = computed(
        VCPO.replace(advantage=GroupRelative(center="none", scale="none")),
        ["draw.importance", "gradient.logprob"],
        members=[{"path": "1 | 3 3 ~ 9 9 | 3", "reward": 1}],
        columns={"token": {"recomputed_logprob": (log_ratios - 1.0).tolist()}},
    )
    weight = -result["gradient.logprob"][0]
    return {
        "weight": result["draw.importance"],
        "token_weight": weight,
        "length": result["draw.importance"] / weight,
    }


@EXAMPLES.by("two mini-batches of one update")
def minibatches(example: Example) -> Found:
    results = {}
    for name in ("first", "second"):
        weights = group(np.ones(4), np.ones(4), example.values[name][:, None], ["draw.importance"])["draw.importance"]
        results[f"scale_of_{name}"] = np.array(SCALE.factor(weights))
    return results


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
