"""Worked examples of the paper of hgpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.hgpo import HistoryRelative

EXAMPLES = PaperExamples("hgpo")


def trajectory(states: str, rewards: Sequence[float], **more: Any) -> dict[str, Any]:
    """Return a trajectory with a one-token step for each state."""
    steps = [{"state": state, "reward": reward} for state, reward in zip(states, rewards, strict=True)]
    return {"path": "1 | 3" + " ~ 9 | 3" * (len(states) - 1), "steps": steps, "reward": float(sum(rewards)), **more}


CODE = recipes.HGPO.replace(
    advantage=tuple(
        replace(link, state_weight=2.0) if isinstance(link, HistoryRelative) else link
        for link in recipes.HGPO.chain("advantage")
    )
)
"""The recipe with the public code's weights 2, 3, 4."""


def step_advantages(*members: dict[str, Any], recipe: Recipe = recipes.HGPO) -> list[Value]:
    """Return the advantages of the steps of each trajectory."""
    tokens = {"reference_logprob": [-1.0] * sum(len(member["steps"]) for member in members)}
    result = computed(recipe, ["step.advantage"], members=members, columns={"token": tokens})
    return np.split(result["step.advantage"], np.cumsum([len(member["steps"]) for member in members])[:-1])


@EXAMPLES.by("four trajectories of states a, b, c, d, e")
def four(example: Example) -> Found:
    given = example.values
    members = [
        trajectory("abc", given["r1"].tolist()),
        trajectory("abd", [0.0, 0.0, 0.0]),
        trajectory("adb", given["r3"].tolist()),
        trajectory("ab", given["r4"].tolist()),
    ]
    results = {f"trajectory{place + 1}": each for place, each in enumerate(step_advantages(*members, recipe=CODE))}
    paper = step_advantages(*members)[0][1]
    return {**results, "equation_7_without_empty_levels_for_b_of_1": paper}


@EXAMPLES.by("a real zero counts as absent in the code")
def zero(example: Example) -> Found:
    first, second, other = example.values["b"].tolist()
    result = step_advantages(
        trajectory("ab", [0.0, first]), trajectory("ab", [0.0, second]), trajectory("cb", [0.0, other])
    )
    return {"advantage_code": result[0][1:]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    members = [trajectory("a", [reward]) for reward in example.values["R"].tolist()]
    unknown = trajectory("a", [5.0])
    del unknown["reward"]
    turn_advantages = np.concatenate(step_advantages(*members, unknown))
    assert turn_advantages[-1] == 0
    return {"advantage_of_level_0": np.append(turn_advantages[:-1], np.nan)}


@EXAMPLES.by("objective with KL, two optimizer steps")
def objective(example: Example) -> Found:
    given = example.values
    plain = replace(given_advantages(recipes.HGPO).loss, kl=None)

    def compute(now: Value, **loss: Any) -> Found:
        return dict(
            computed(
                given_advantages(recipes.HGPO).replace(**loss),
                ["loss", "gradient.logprob"],
                members=answers([2, 1], given["A"][[0, 2]].tolist()),
                columns={"token": {"reference_logprob": given["ref"].tolist()}},
                policy={"logprob": now.tolist()},
            )
        )

    return {
        "first_loss": compute(given["first"])["loss"],
        "second_loss": compute(given["second"])["loss"],
        "second_has_gradient_of_objective": compute(given["second"], loss=plain)["gradient.logprob"] != 0,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
