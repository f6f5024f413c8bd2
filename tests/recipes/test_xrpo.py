"""XRPO: rare successes get a larger advantage, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rollouts import small

from agentrl_core import Batch
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.xrpo import Novelty


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_novelty_by_hand() -> None:
    rare = small([(0, [1]), (0, [1])], draw_advantage=[1.0, -1.0], token_current=[-3.0, -1.0])
    expected = [1.0 + min(2.5 * (1.0 - math.exp(-1.0)), 0.5), -1.0]
    close(column(Novelty(logprob="current")(rare), "advantage", "draw"), expected)
    gentle = Novelty(logprob="current", coefficient=0.1)(rare)
    close(column(gentle, "advantage", "draw"), [1.0 + 0.1 * (1.0 - math.exp(-1.0)), -1.0])


def test_impossible_options() -> None:
    with pytest.raises(RecipeError, match=r"option at_most=-1\.0"):
        Novelty(at_most=-1.0)
