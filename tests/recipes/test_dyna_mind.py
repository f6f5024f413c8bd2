"""Dyna-Mind: which refined rollouts are imitated, by hand."""

from __future__ import annotations

import math

from compared import close, column
from riddles import RIGHT, Riddles, in_turn, script
from rollouts import small

from agentrl_core import Collector, recipes
from agentrl_core.recipes.dyna_mind import Refinement


def test_refined_rollouts() -> None:
    batch = small(
        [(0, [1])] * 6,
        draw_score=[1.0, 3.0, 2.0, 3.0, 5.0, math.nan],
        draw_refined=[0, 0, 1, 1, 1, 1],
        draw_success=[1, 1, 1, 0, 1, 1],
    )
    # Means: 2 of the plain rollouts, 10/3 of the refined. Plain rollouts in a group with refined ones are not trained.
    close(column(Refinement()(batch)), [0.0, 0.0, 0.0, 0.0, 1.0, 0.0])


def test_groups_without_refined_rollouts_get_group_relative_advantages() -> None:
    batch = small([(0, [1])] * 3, draw_score=[1.0, 3.0, math.nan], draw_refined=[0, 0, 0], draw_success=[1, 1, 1])
    close(column(Refinement()(batch)), [-1 / math.sqrt(2), 1 / math.sqrt(2), 0.0])


def test_only_even_iterations_simulate() -> None:
    collect = Collector(script(in_turn(RIGHT)), Riddles(), recipes.DYNA_MIND, task_pool=4)
    refined = []
    for _ in range(3):
        batch = collect(tasks=1, group_size=4)
        collect.end_iteration(batch, {})
        refined.append(int(batch.column("refined", "draw").sum()))
    assert refined == [2, 0, 2]
