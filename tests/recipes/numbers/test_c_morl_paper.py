"""Worked examples of the paper of c_morl, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.component import IterationRecord

EXAMPLES = PaperExamples("c_morl")
LOSSES = given_advantages(recipes.C_MORL)
HELD = recipes.C_MORL.advantage
RISING, OTHER = HELD.columns.split(",")


def members(rising: Value, other: Value) -> list[dict[str, Any]]:
    """Return rollouts of a group with two rewards."""
    names = [name.removeprefix("reward.") for name in (RISING, OTHER)]
    return [
        {"path": "1 | 3", "reward": 0, "rewards": dict(zip(names, pair, strict=True))}
        for pair in zip(rising.tolist(), other.tolist(), strict=True)
    ]


def next_state(state: dict[str, Any], other: Value) -> dict[str, Any]:
    """Return the state after an iteration with these values of the other objective."""
    batch = recipes.C_MORL.credit(rollouts(members(other, other), 0).with_state({}))
    return HELD.next(state, IterationRecord.of(batch))


@EXAMPLES.by("extension of objective 0, first and second step")
def extension(example: Example) -> Found:
    """The policy's part of the loss, with advantages of objective 0 only: the other objective meets its threshold."""
    given, old = example.values, np.full(2, -1.0)
    steps = [single_tokens(LOSSES, old, old + moved, given["A"])["loss"] for moved in (np.zeros(2), given["d"])]
    rising, other = given["A"], given["m"][1] + np.array([-1.0, 1.0])
    advantages = computed(recipes.C_MORL, ["draw.advantage"], members=members(rising, other))["draw.advantage"]
    np.testing.assert_allclose(advantages, rising / (np.sqrt(2) + 1e-6), rtol=1e-6)
    floors = next_state(HELD.initial_state(), other)["floors"]
    assert floors == {OTHER: pytest.approx(given["beta"] * given["m"][1])}
    return {"policy_loss_1": steps[0], "policy_loss_2": steps[1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_an_objective_that_falls_below_its_threshold_gets_a_weight() -> None:
    """The threshold is 1.8; weights are 0.1 (1.8 - 2), not below 0, then 0.03 and 0.02."""
    state, weights = HELD.initial_state(), []
    for mean in (2.0, 1.5, 1.9):
        state = next_state(state, mean + np.array([-1.0, 1.0]))
        weights.append(state["weights"][OTHER])
    assert weights == pytest.approx([0.0, 0.03, 0.02])
