"""Worked examples of the paper of hnpg, computed by the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.hnpg import TwoMeans

EXAMPLES = PaperExamples("hnpg")
RECIPE = recipes.HNPG
STORED = {"source": "replay", "old_logprob": "recomputed"}


def weighted(coefficient: float, recipe: Recipe = RECIPE) -> Recipe:
    (weight,) = recipe.chain("weight")
    assert isinstance(weight, TwoMeans)
    return recipe.replace(weight=replace(weight, coefficient=coefficient))


def discounted(gamma: float) -> Recipe:
    """Return the recipe with a discount, as in the paper's theory."""
    links = (replace(link, gamma=gamma) if isinstance(link, Gae) else link for link in RECIPE.chain("advantage"))
    return RECIPE.replace(advantage=tuple(links))


def root(gradient: Callable[[float], Any]) -> float:
    """Return the point at which a linear gradient is 0."""
    at_0, at_1 = float(gradient(0.0)), float(gradient(1.0))
    return at_0 / (at_0 - at_1)


def minimum(recipe: Recipe, members: list[dict[str, Any]], values: Value) -> float:
    """Return the value of all rows that minimises the critic's loss, for targets from these earlier values."""

    def gradient(value: float) -> Any:
        result = computed(
            recipe,
            ["loss.critic"],
            members=members,
            columns={"token": {"value": values.tolist(), "recomputed_logprob": [-1.0] * len(values)}},
            critic={"value": [value] * len(values)},
        )
        return result["gradient.critic.value"].sum()

    return root(gradient)


def fresh(*returns: float) -> list[dict[str, Any]]:
    return [
        {"group": f"fresh {place}", "path": "1 | 3", **({} if np.isnan(each) else {"reward": float(each)})}
        for place, each in enumerate(returns)
    ]


def stored(*episodes: tuple[int, float]) -> list[dict[str, Any]]:
    """Return stored episodes with these token counts and final rewards."""
    return [
        {"group": f"stored {place}", "path": f"1 | 3*{length}", "reward": float(reward), **STORED}
        for place, (length, reward) in enumerate(episodes)
    ]


@EXAMPLES.by("critic constant over rows")
def constant(example: Example) -> Found:
    """The first two offline rows are an episode of two tokens."""
    given = example.values
    _, middle, end = given["r_off"].tolist()
    members = stored((2, middle), (1, end)) + fresh(*given["y_on"].tolist())
    values = np.array([0.0, given["next_value"][0], 0.0, 0.0, 0.0])
    theory = discounted(float(given["gamma"]))
    result = computed(
        theory,
        ["token.return"],
        members=members,
        columns={"token": {"value": values.tolist(), "recomputed_logprob": [-1.0] * len(values)}},
    )
    return {
        "offline_target": result["token.return"][:3],
        "critic": minimum(theory, members, values),
        "critic_finite_horizon": minimum(RECIPE, members, values),
    }


@EXAMPLES.by("online advantages of two episodes")
def online(example: Example) -> Found:
    given = example.values
    rewards, values = (float(given["r_a"]), float(given["r_b"])), [*given["V_a"], *given["V_b"]]
    members = [
        {"group": f"{place}", "path": f"1 | 3*{length}", "reward": reward}
        for place, (length, reward) in enumerate(zip((2, 1), rewards, strict=True))
    ]
    names = ["token.advantage", "token.return"]
    result = computed(RECIPE, names, members=members, columns={"token": {"value": values}})
    return {"advantage": result["token.advantage"], "return": result["token.return"]}


@EXAMPLES.by("one row of each kind")
def one_of_each(example: Example) -> Found:
    given = {name: float(value) for name, value in example.values.items()}
    members = stored((1, given["target_off"])) + fresh(given["y_on"])
    return {"critic": minimum(weighted(given["weight"]), members, np.zeros(2))}


@EXAMPLES.by("on-policy row without a return (convention)")
def unscored(example: Example) -> Found:
    given = example.values
    members = stored(*((1, each) for each in given["target_off"])) + fresh(*given["y_on"].tolist(), np.nan)
    result = computed(
        RECIPE,
        ["token.return"],
        members=members,
        columns={"token": {"value": [0.0] * 5, "recomputed_logprob": [-1.0] * 5}},
    )
    assert result["token.return"][-1] == 0
    return {
        "critic": minimum(RECIPE, members, np.zeros(5)),
        "regression_target": np.array([*result["token.return"][3:4], np.nan]),
    }


def direction(weight: float, off: Mapping[str, Value], on: Mapping[str, Value]) -> float:
    """Return the minimiser w of the policy's loss, with log-ratios w phi of rows with these features."""
    features = np.concatenate([off["phi"], on["phi"]])
    targets = np.concatenate([off["fbar"], on["fbar"]])
    members = stored(*((1, 0.0) for _ in off["phi"])) + fresh(*([0.0] * len(on["phi"])))
    raw_advantage = GroupRelative(column="given", level="token", center="none", scale="none")
    recipe = weighted(weight, RECIPE.replace(advantage=raw_advantage, loss=RECIPE.chain("loss")[1]))

    def gradient(w: float) -> Any:
        result = computed(
            recipe,
            ["loss"],
            members=members,
            columns={"token": {"given": targets.tolist(), "recomputed_logprob": [-1.0] * len(features)}},
            policy={"logprob": (w * features - 1.0).tolist()},
        )
        return result["gradient.logprob"] @ features

    return root(gradient)


@EXAMPLES.by("direction of a softmax over two actions")
def softmax(example: Example) -> Found:
    given = example.values
    rows = {"off": [0, 1, 1], "on": [0, 0]}
    kinds = {kind: {"phi": given["phi"][actions], "fbar": given["fbar"][actions]} for kind, actions in rows.items()}
    return {"direction": direction(float(given["weight"]), kinds["off"], kinds["on"])}


@EXAMPLES.by("direction where rows disagree")
def disagree(example: Example) -> Found:
    given = example.values
    off, on = ({name: given[f"{name}_{kind}"] for name in ("phi", "fbar")} for kind in ("off", "on"))
    return {"direction": [direction(weight, off, on) for weight in (0.0, 1.0, 10.0)]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
