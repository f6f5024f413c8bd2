"""Worked examples of the paper of s2pg, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("s2pg")
GAE, WHITENING = recipes.S2PG.chain("advantage")
CRITIC, POLICY = recipes.S2PG.chain("loss")


def episode(rewards: Value, name: str, *, cut: bool) -> dict[str, Any]:
    """Return a rollout of one token for each step, optionally cut off by the end of the data."""
    steps: list[dict[str, Any]] = [{"reward": reward} for reward in rewards.tolist()]
    path = "1 " + " ~ 9 ".join(["| 3"] * len(steps))
    steps[-1]["truncated"] = cut
    return {"group": name, "path": path, "reward": 0, "steps": steps, "status": "truncated" if cut else "finished"}


@EXAMPLES.by("advantages of an episode that fails and of one that is cut off")
def gae(example: Example) -> Found:
    given = example.values
    members = [episode(given["r"][:2], "failed", cut=False), episode(given["r"][2:], "cut", cut=True)]
    columns = {"step": {"value": given["V"].tolist(), "next_value": given["V_next"].tolist()}}
    names = ["step.advantage", "step.return"]
    plain = computed(recipes.S2PG.replace(advantage=GAE), names, members=members, columns=columns)
    return {
        "advantage": plain["step.advantage"],
        "target": plain["step.return"],
        "normalised": computed(recipes.S2PG, names[:1], members=members, columns=columns)["step.advantage"],
    }


@EXAMPLES.by("one sample alone has advantage 0")
def alone(example: Example) -> Found:
    batch = small([(0, [1])], draw_score=[0.0], step_advantage=example.values["A"])
    return {"normalised": np.array(column(WHITENING(batch), level="step"))}


def turn(moved: Value, gain: float, clip: float | None = None) -> Value:
    """Return the loss of a turn with one action token and one memory token that have these log-ratios."""
    loss = POLICY if clip is None else replace(POLICY, clip=replace(POLICY.clip, low=clip, high=clip))
    recipe = recipes.S2PG.replace(
        advantage=GroupRelative(center="none", scale="none"), loss=loss, epochs=1, minibatches=1
    )
    members = [{"path": "1 | 3 4", "reward": gain}]
    return computed(recipe, ["loss"], members=members, policy={"logprob": (moved - 1.0).tolist()})["loss"]


@EXAMPLES.by("ratio after a step moves by the state alone")
def ratio(example: Example) -> Found:
    given = example.values
    away = ((given["x"] - given["mu_old"]) ** 2 - (given["x"] - given["mu"]) ** 2) / (2 * given["sigma"] ** 2)
    losses = np.concatenate([turn(away, gain, float(given["eps"])) for gain in given["A"].tolist()])
    return {"ratio": -losses[:1], "losses_by_sign": losses}


@EXAMPLES.by("next data: old densities are those of the policy just trained")
def next_data(example: Example) -> Found:
    del example
    return {"ratio": -turn(np.zeros(2), 1.0)}


def test_steps_of_a_batch_are_those_of_the_code() -> None:
    assert recipes.S2PG.epochs * recipes.S2PG.minibatches == 630


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
