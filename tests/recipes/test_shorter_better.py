"""ShorterBetter: scores by hand, for a group with a right answer and one without."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compared import close, column
from rollouts import small

from agentrl_core import recipes
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.shorter_better import OptimalLength


def test_a_group_is_held_to_its_shortest_right_answer() -> None:
    batch = small(
        [(0, [4]), (0, [2, 5]), (0, [1]), (1, [3]), (1, [6]), (1, [9])],
        draw_score=[1.0, 1.0, 0.0, 0.0, 0.0, math.nan],
        draw_success=[1, 1, 0, 0, 0, 1],
    )
    scored = column(OptimalLength(coefficient=0.1)(batch), "score")
    # Lengths 4, 7, 1: the shortest right one has 4. Lengths 3 and 6, none right: their mean is 4.5.
    close(scored[:5], [1.0, 1.0 - 0.3, 0.0 - 0.3, -0.15, -0.15], 1e-6)
    assert math.isnan(scored[5]), "what has no score neither counts nor gets one"


def test_the_recipe_by_hand() -> None:
    batch = small([(0, [10]), (0, [30]), (0, [20])], draw_success=[1, 1, 0])
    batch = recipes.SHORTER_BETTER.credit(recipes.SHORTER_BETTER.score(batch))
    scores = np.array([2.0, 2.0 - 0.02, 0.0 - 0.01])
    close(column(batch, "score"), scores, 1e-6)
    close(column(batch, "advantage"), (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6), 1e-5)


def test_a_negative_coefficient_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"coefficient=-1\.0"):
        OptimalLength(coefficient=-1.0)
