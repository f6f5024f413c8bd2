"""Dyna-Mind: which refined rollouts are worth imitating, by hand."""

from __future__ import annotations

import math

from compared import close, column
from rollouts import small

from agentrl_core.recipes.dyna_mind import Refinement


def test_refined_rollouts() -> None:
    batch = small(
        [(0, [1])] * 6,
        draw_score=[1.0, 3.0, 2.0, 3.0, 5.0, math.nan],
        draw_refined=[0, 0, 1, 1, 1, 1],
        draw_success=[1, 1, 1, 0, 1, 1],
    )
    # Means: 2 of the plain ones, 10/3 of the refined.
    close(column(Refinement()(batch)), [-1 / math.sqrt(2), 1 / math.sqrt(2), 0.0, 0.0, 1.0, 0.0])
