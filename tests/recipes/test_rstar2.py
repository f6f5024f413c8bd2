"""rStar2-Agent: surviving draws, and advantages among them, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rollouts import small

from agentrl_core import Batch
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipes.rstar2 import RSTAR2, ResampleOnCorrect


def column(batch: Batch, name: str = "score", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(values: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)


def test_grpo_is_among_the_survivors() -> None:
    batch = small(
        [(0, [1])] * 4,
        draw_reward=[1.0, 0.0, 0.0, 0.0],
        draw_success=[1, 0, 0, 0],
        **{"draw_reward.tool_penalty": [0.5] * 4},
    )
    recipe = RSTAR2.replace(reward=(RSTAR2.reward[0], ResampleOnCorrect(count=2, at_least=1, seed=None)))
    credited = recipe.credit(recipe.score(batch))
    close(column(credited), [1.0, 0.0, math.nan, math.nan])
    close(column(credited, "advantage"), [math.sqrt(0.5), -math.sqrt(0.5), 0.0, 0.0])
    assert column(credited, "keep")[:2] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("failures", "successes", "kept"),
    [(16, 16, (8, 8)), (1, 31, (1, 15)), (30, 2, (14, 2)), (24, 8, (12, 4)), (31, 1, (15, 1))],
)
def test_as_many_survive_and_without_a_seed_the_cleanest(failures: int, successes: int, kept: tuple[int, int]) -> None:
    total = failures + successes
    batch = small(
        [(0, [1])] * total,
        draw_score=[0.0] * failures + [1.0] * successes,
        draw_success=[0] * failures + [1] * successes,
        **{"draw_reward.tool_penalty": np.arange(total, 0, -1)},
    )
    for seed in (None, 3):
        survives = np.isfinite(column(ResampleOnCorrect(seed=seed)(batch)))
        assert (int(survives[:failures].sum()), int(survives[failures:].sum())) == kept
        if seed is None:
            assert survives[total - kept[1] :].all()
            assert survives[: kept[0]].all()


def test_clean_successes_come_first_and_are_drawn_by_chance() -> None:
    selections = set()
    for seed in range(8):
        batch = small(
            [(0, [1])] * 6,
            draw_score=[1.0] * 5 + [0.0],
            draw_success=[1] * 5 + [0],
            draw_x=[0.5, 0.0, 0.0, 0.0, 2.0, 0.0],
        )
        survives = np.isfinite(column(ResampleOnCorrect(count=3, penalty="x", at_least=1, seed=seed)(batch)))
        assert survives.sum() == 3
        assert survives[1:4].sum() == 2
        selections.add(survives.tobytes())
    assert len(selections) > 1
    with pytest.raises(InvalidInputError, match=r"penalties\[\d\] is -0\.5; give at least 0, or seed=None"):
        ResampleOnCorrect(penalty="x")(batch.with_columns("draw", x=[-0.5, *[0.0] * 5]))


def test_a_group_that_is_too_small_has_no_survivor() -> None:
    batch = small([(0, [1])] * 3, draw_score=[1.0, 0.0, 0.0], draw_success=[1, 0, 0], draw_x=[0.0] * 3)
    assert np.isnan(column(ResampleOnCorrect(count=4, penalty="x")(batch))).all()
    for options, message in (({"count": 0}, "count=0"), ({"seed": -1}, "seed=-1"), ({"penalty": ""}, "penalty=''")):
        with pytest.raises(RecipeError, match=message):
            ResampleOnCorrect(**options)
