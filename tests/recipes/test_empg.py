"""Compare EMPG, steps gated by confidence, with loops over nested lists and with numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import means, plain, small, with_tokens

from agentrl_core import Batch
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.empg import StepConfidence

SEEDS = st.integers(0, 10**6)


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_steps_gated_by_confidence_by_hand() -> None:
    batch = small([(0, [1, 1]), (0, [1])], token_entropy=[0.2, 0.6, 1.0], draw_advantage=[1.0, -1.0])
    close(column(StepConfidence(bonus_coefficient=0.1)(batch), "advantage", "step"), [0.932524, 0.274017, -1.206541])
    plainly = StepConfidence(gate_coefficient=0.0, bonus_coefficient=0.0)(batch)
    close(column(plainly, "advantage", "step"), [2 / 3, 2 / 3, -4 / 3])
    dead = batch.with_columns("draw", advantage=np.array([0.0, 0.0], np.float32))
    bare = StepConfidence(bonus_coefficient=0.1, recenter=False, bonus_without_signal=False)(dead)
    assert column(bare, "advantage", "step") == [0.0, 0.0, 0.0]


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_steps_gated_by_confidence(seed: int) -> None:
    batch = with_tokens(seed, entropy=1.0)
    entropy = means(batch, "entropy", "step")
    finite = [value for value in entropy if value is not None]
    if not finite:
        return
    span = max(finite) - min(finite)
    scaled = [None if h is None else (h - min(finite)) / (span + 1e-8) if span else 0.0 for h in entropy]
    gates = [None if h is None else math.exp(-h) for h in scaled]
    middle = np.mean([gate for gate in gates if gate is not None])
    advantage, row, values = batch.column("advantage", "draw").astype(float), 0, []
    for draw in plain(batch):
        for step in draw.steps:
            gate, after = gates[step.row], None if step is draw.steps[-1] else scaled[step.row + 1]
            value = advantage[draw.row] * (1.0 if gate is None else gate / middle)
            values.append(value + (0.1 * math.exp(-after) if after is not None else 0.0))
            row += 1
    valid = np.array([draw.valid for draw in plain(batch) for _ in draw.steps])
    expected = np.where(valid, np.array(values) - np.array(values)[valid].mean(), 0.0)
    close(column(StepConfidence()(batch), "advantage", "step"), expected, 1e-4)


def test_impossible_options() -> None:
    with pytest.raises(RecipeError, match=r"option gate_coefficient=-1\.0"):
        StepConfidence(gate_coefficient=-1.0)
