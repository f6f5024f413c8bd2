"""A2FM: compare the price of an expensive mode with numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rollouts import small

from agentrl_core import Batch
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.a2fm import A2FM, ModeCost


def column(batch: Batch, name: str = "score", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(values: object, expected: object, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)


def test_dear_modes_cost_where_the_cheap_one_would_do() -> None:
    groups = [0] * 6 + [1] * 4
    batch = small(
        [(group, [1]) for group in groups],
        draw_score=[1.0, 1.0, 1.0, 1.0, 0.5, math.nan, 1.0, 1.0, 1.0, 1.0],
        draw_success=[1, 1, 0, 1, 1, 0, 0, 1, 1, 1],
        **{
            "draw_reward.mode": [0, 0, 1, 2, 1, 1, 0, 0, 1, 2],
            "draw_reward.forced": [1, 1, 1, 1, 0, 0, 1, 1, 1, 0],
        },
    )
    # Group 0: both forced into mode 0 succeed, 3 of 4 forced draws do. Group 1: one of two, and 2 of 3.
    dear, other = 1.0 - 0.75**2, 1.0 - (2 / 3) ** 2
    close(column(ModeCost()(batch)), [1.0, 1.0, 1.0, 1.0, 0.5 * dear, math.nan, 1.0, 1.0, 1.0, other])
    close(column(ModeCost(easy=0.6)(batch))[6:], [1.0] * 4)
    close(column(ModeCost(easy=0.5, power=1.0)(batch))[6:], [1.0, 1.0, 1.0, 1.0 - 2 / 3])


def test_options_out_of_range() -> None:
    for options, message in (({"easy": 2.0}, r"easy=2\.0"), ({"power": 0.0}, r"power=0\.0"), ({"mode": ""}, "mode=''")):
        with pytest.raises(RecipeError, match=message):
            ModeCost(**options)


def test_a_rollout_with_a_bad_format_has_score_zero() -> None:
    batch = small(
        [(0, [1])] * 4,
        draw_reward=[1.0, 1.0, 1.0, 1.0],
        draw_success=[1, 1, 0, 1],
        **{
            "draw_reward.mode": [0, 0, 1, 1],
            "draw_reward.forced": [1, 1, 1, 0],
            "draw_reward.format": [1, 0, 1, 1],
        },
    )
    close(column(A2FM.score(batch)), [1.0, 0.0, 1.0, 1.0 - (2 / 3) ** 2])
