"""Rank-GRPO: items of a list, by hand."""

from __future__ import annotations

import numpy as np
from compared import close, column
from rollouts import small

from agentrl_core.advantage import Normalisation
from agentrl_core.recipes.rank_grpo import SegmentRelative


def test_items_of_a_list() -> None:
    # Two lists of up to three items: 1 0 1 complete and one too many, 0 0 - incomplete.
    batch = small(
        [(0, [6]), (0, [4])],
        draw_score=[1.0, 0.0],
        **{"draw_hit.0": [1.0, 0.0], "draw_hit.1": [0.0, 0.0], "draw_hit.2": [1.0, 0.0]},
        token_segment=[0, 0, 1, 2, 3, -2, 0, 1, -1, -2],
    )
    component = SegmentRelative(normalisation=Normalisation(scale="none"))
    close(
        column(component(batch), level="token"),
        [0.75, 0.75, 0.25, 0.25, -0.1, 0.0, -0.75, -0.25, 0.0, -0.1],
        1e-7,
    )
    independent = SegmentRelative(credit="independent", normalisation=Normalisation(scale="none"))
    close(column(independent(batch), level="token")[:4], [0.5, 0.5, 0.0, 0.5])
    whole = batch.with_columns("token", segment=np.array([0, 0, 1, 2, -1, -2, 0, 1, 2, -2]))
    close(np.array(column(component(whole), level="token"))[[5, 9]], [0.1, 0.1])
