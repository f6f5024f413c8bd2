"""Compare bonuses that are added to advantages with numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
from rollouts import small

from agentrl_core import Batch
from agentrl_core.advantage import EntropyBonus
from agentrl_core.exceptions import RecipeError


def column(batch: Batch, name: str, level: str) -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_entropy_bonus_by_hand() -> None:
    batch = small([(0, [3]), (0, [3])], token_entropy=[0.1, 0.5, 2.0] * 2, draw_advantage=[0.8, -0.8])
    close(column(EntropyBonus()(batch), "advantage", "token"), [0.84, 1.0, 1.2, -0.76, -0.6, -0.4])
    draws = EntropyBonus(level="draw", coefficient=-0.1, at_most=None)
    result = draws(batch.with_columns("token", entropy=np.array([0.5] * 3 + [0.7] * 3, np.float32)))
    close(column(result, "advantage", "draw"), [0.75, -0.87])


def test_entropy_bonus_of_spans_alone() -> None:
    # Spans 1, none, 2; not known, 1, none: 0.4 * 0.1, -, at most 0.8 / 2; -, 0.4 * 0.5, -.
    batch = small([(0, [3]), (0, [3])], token_entropy=[0.1, 0.5, 2.0] * 2, draw_advantage=[0.8, -0.8])
    batch = batch.with_columns("token", thought=np.array([1.0, 0.0, 2.0, np.nan, 1.0, 0.0]))
    result = EntropyBonus(within="thought")(batch)
    close(column(result, "advantage", "token"), [0.84, 0.8, 1.2, -0.8, -0.6, -0.8])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EntropyBonus(at_most=0.0), "option at_most=0.0"),
        (
            lambda: EntropyBonus(within="thought", level="draw"),
            "option within='thought' is not possible; choose level=",
        ),
    ],
)
def test_impossible_options(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
