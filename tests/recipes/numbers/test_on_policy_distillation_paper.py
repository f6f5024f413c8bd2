"""Worked examples of on-policy distillation, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("on_policy_distillation")
RECIPE = recipes.ON_POLICY_DISTILLATION


def run(example: Example, members: list[dict[str, Any]], names: list[str], recipe: Any = RECIPE) -> Found:
    """Run the recipe on the log-probs of an example; losses are sums over tokens."""
    teacher = example.values["q"].tolist()
    policy = example.values.get("new", example.values["p"]).tolist()
    columns = {"token": {"teacher_logprob": teacher}}
    result = computed(recipe, names, members=members, columns=columns, policy={"logprob": policy})
    factors = {"token.advantage": 1, "loss": len(teacher), "gradient.logprob": len(teacher)}
    return {name.removeprefix("token.").removesuffix(".logprob"): result[name] * factors[name] for name in names}


def member(path: str, logprobs: Any, reward: float) -> dict[str, Any]:
    return {"path": path, "reward": reward, "logprobs": list(logprobs)}


@EXAMPLES.by("two rollouts with equal rewards")
def equal(example: Example) -> Found:
    p = example.values["p"]
    return run(
        example,
        [member("1 | 3 4", p[:2], 0), member("1 | 5", p[2:], 0)],
        ["token.advantage", "loss", "gradient.logprob"],
    )


@EXAMPLES.by("beside rewards")
def rewards(example: Example) -> Found:
    pairs = zip(example.values["R"], example.values["p"], strict=True)
    members = [member(f"1 | {3 + place}", [p], reward) for place, (reward, p) in enumerate(pairs)]
    return run(example, members, ["token.advantage"])


@EXAMPLES.by("a discount above 0")
def discounted(example: Example) -> Found:
    credit, rewards = RECIPE.chain("advantage")
    recipe = RECIPE.replace(advantage=(replace(credit, gamma=0.5), rewards))
    return run(example, [member("1 | 3 4 5", example.values["p"], 0)], ["token.advantage"], recipe)


@EXAMPLES.by("a tool answers between two turns")
def turns(example: Example) -> Found:
    return run(example, [member("1 | 3 ~ 9 9 9 | 4", example.values["p"], 0)], ["token.advantage", "loss"])


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    return run(example, [member("1 | 3 4", example.values["p"], 1)], ["token.advantage"])


@EXAMPLES.by("tokens that an older policy sampled")
def older(example: Example) -> Found:
    return run(example, [member("1 | 3 4", example.values["p"], 0)], ["loss", "gradient.logprob"])


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
