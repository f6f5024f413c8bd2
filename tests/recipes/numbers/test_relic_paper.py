"""Worked examples of the paper of relic, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipes.t_ppo import CutOff

EXAMPLES = PaperExamples("relic")
GAE = recipes.RELIC.chain("advantage")[1]


def credit(members: list[dict[str, Any]], rewards: Value, values: Value, behind: float) -> Found:
    """Return advantages and returns by the recipe's GAE, with rewards of tokens and a value after the last one."""
    gae = replace(GAE, column="given", at_truncation="bootstrap")
    tokens = {"given": rewards.tolist(), "value": values.tolist(), "next_value": [behind] * len(values)}
    draws = {"success": [float(member.get("success", True)) for member in members]}
    draws["success"][-1] = float("nan")
    result = computed(
        recipes.RELIC.replace(advantage=(CutOff(), gae)),
        ["token.advantage", "token.return"],
        members=members,
        columns={"token": tokens, "draw": draws},
    )
    return {"advantage": result["token.advantage"], "return": result["token.return"]}


@EXAMPLES.by("updates of one rollout")
def updates(example: Example) -> Found:
    given = example.values
    recipe = recipes.RELIC
    assert recipe.epochs == given["epochs"]
    early, late = whole_or_window(ended=True), whole_or_window(ended=False)
    return {
        "optimizer_steps": np.array(float(recipe.epochs * recipe.minibatches)),
        "uses_of_an_early_step": recipe.epochs * (early[0] + late[1]),  # it belonged to the newest window once
        "uses_of_a_late_step": recipe.epochs * early[1],  # a full update takes the place of its partial one
    }


def whole_or_window(*, ended: bool) -> Value:
    """Return which of two tokens of one rollout, an early and a late one, an update trains."""
    return computed(
        recipes.RELIC,
        ["token.keep"],
        members=[
            {"path": "1 | 3 ~ 9 | 4", "policy_version": [0, 1], "reward": 0, "steps": [{"reward": 0}, {"reward": 0}]}
        ],
        columns={"token": {"value": [0, 0]}, "draw": {"success": [0.0 if ended else float("nan")]}},
    )["token.keep"]


@EXAMPLES.by("returns over an episode that failed, in the middle of the rollout")
def returns(example: Example) -> Found:
    given = example.values
    failed, going = answers([2, 2], [0, 0])
    return credit([{**failed, "success": False}, going], given["r"], given["V"], float(given["V_next"]))


@EXAMPLES.by("values of the context anew: the return of a later update changes")
def anew(example: Example) -> Found:
    given, behind = example.values, float(example.values["V_next"])
    now, stale = (credit(answers([2], [0]), given["r"], given[name], behind) for name in ("V_now", "V_sampled"))
    return {"advantage": now["advantage"], "advantage_by_stale_values": stale["advantage"]}


@EXAMPLES.by("partial and full loss of the same rollout")
def losses(example: Example) -> Found:
    """The loss of the critic is half the square; 0.5 of it is added, as in the code."""
    given = example.values
    tokens = {"given": given["A"], "return": given["R"], "value": given["V"]}
    recipe = recipes.RELIC.replace(
        reward=recipes.RELIC.chain("reward")[0],
        advantage=(CutOff(), GroupRelative(column="given", level="token", center="none", scale="none")),
        epochs=1,
        minibatches=1,
    )
    results = {}
    for name, success in (("partial", float("nan")), ("full", 1.0)):
        loss = computed(
            recipe,
            ["loss.policy", "loss.critic"],
            members=[
                {
                    "path": "1 | 3 4 ~ 9 | 5 6",
                    "policy_version": [0, 1],
                    "reward": 1,
                    "logprobs": given["lp_sampled"].tolist(),
                }
            ],
            columns={
                "token": {name: values.tolist() for name, values in tokens.items()},
                "draw": {"success": [success]},
            },
            policy={"logprob": given["lp"].tolist(), "entropy": given["H"].tolist()},
            critic={"value": given["V"].tolist()},
        )
        results[name] = loss["loss.policy"] + 0.5 * loss["loss.critic"]
    return results


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
