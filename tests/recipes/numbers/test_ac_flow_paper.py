"""Worked examples of the paper of ac_flow, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL

EXAMPLES = PaperExamples("ac_flow")
AC_FLOW = recipes.AC_FLOW
LEARNED, BOUNDED, WEIGHTED = AC_FLOW.chain("advantage")
CRITIC, POLICY = AC_FLOW.chain("loss")


def credit(rewards: Sequence[float], values: Sequence[Sequence[float]]) -> Found:
    """Return bounded advantages and twice the critic's loss, for rollouts with a reward at most at their last step."""
    members: list[dict[str, Any]] = []
    for reward, rollout_values in zip(rewards, values, strict=True):
        steps = [{"reward": 0.0}] * (len(rollout_values) - 1) + [{"reward": reward}]
        scored = {"steps": steps, "reward": reward} if np.isfinite(reward) else {}
        members.append(
            {"group": str(len(members)), "path": "1 " + " ~ 9 ".join(["| 3"] * len(rollout_values)), **scored}
        )
    flat = [value for rollout_values in values for value in rollout_values]
    result = computed(
        AC_FLOW.replace(advantage=(LEARNED, BOUNDED), loss=CRITIC, hooks=None),
        ["step.advantage", "loss"],
        members=members,
        columns={"step": {"value": flat}},
        critic={"value": flat},
    )
    return {"advantage": result["step.advantage"], "critic_loss": 2 * result["loss"]}


@EXAMPLES.by("rewards, critic loss and clipped advantages of samples of three and two steps")
def clipped(example: Example) -> Found:
    given = example.values
    shaped = (given["r"] - given["mean_run"]) / given["std_run"]  # the recipe leaves N1 out
    return credit(shaped.tolist(), [given["V_a"].tolist(), given["V_b"].tolist()])


@EXAMPLES.by("warm-up of two critic updates")
def warm_up(example: Example) -> Found:
    iterations = example.values["update"].astype(int) + 1
    freeze = replace(AC_FLOW.hooks, until=int(example.values["S_w"]) + 1)
    assert freeze.model == "policy"
    return {"actor_moves": np.array([not freeze.is_due(number) for number in iterations.tolist()])}


def test_the_critic_learns_alone_for_fifty_iterations() -> None:
    assert [AC_FLOW.hooks.is_due(number) for number in (1, 50, 51)] == [True, True, False]


@EXAMPLES.by("weighted update with regulariser")
def weighted(example: Example) -> Found:
    given = example.values
    count = len(given["A"])
    logprobs = -given["fm"]
    alpha = float(given["alpha"])
    assert POLICY.kl == KL(0.01, "k2")
    result = computed(
        AC_FLOW.replace(
            advantage=(
                GroupRelative(column="given", level="step", center="none", scale="none"),
                replace(WEIGHTED, temperature=float(given["tau"])),
            ),
            loss=replace(POLICY, kl=replace(POLICY.kl, coefficient=alpha)),
            hooks=None,
        ),
        ["step.advantage", "loss"],
        members=[
            {
                "path": "1 " + " ~ 9 ".join(["| 3"] * count),
                "reward": 1,
                "steps": [{"reward": 0.0}] * count,
                "logprobs": (logprobs - 0.5).tolist(),
            }
        ],
        columns={
            "step": {"given": given["A"].tolist()},
            "token": {"reference_logprob": (logprobs - np.sqrt(2 * given["drift"])).tolist()},
        },
        policy={"logprob": logprobs.tolist()},
    )
    return {"weight": result["step.advantage"], "loss": result["loss"]}


@EXAMPLES.by("a sample without reward (convention)")
def unscored(example: Example) -> Found:
    result = credit([float(example.values["s"][0]), float("nan")], [example.values["V"].tolist(), [2.0]])
    assert result["advantage"][1] == 0
    return {**result, "advantage": np.append(result["advantage"][:1], np.nan)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
