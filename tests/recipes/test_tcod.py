"""TCOD: the maximum depth of a trajectory, by iteration."""

from __future__ import annotations

import pytest
from riddles import Riddles, check_resumes, in_turn, script, solve

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.tcod import TemporalCurriculum


def test_a_trajectory_is_truncated_at_the_depth_of_its_iteration() -> None:
    run = solve(recipes.TCOD, in_turn("look"), group_size=2)
    assert [(row.status, row.drawn) for row in run.rows] == [("truncated", True)] * 2
    assert run.num_requests == 2
    assert solve(TemporalCurriculum(start=2), in_turn("look", "<answer>right</answer>"), group_size=1).num_requests == 2
    with pytest.raises(RecipeError, match="every=0"):
        TemporalCurriculum(every=0)


def test_it_grows_and_resumes() -> None:
    collect = arl.Collector(script(in_turn("look")), Riddles(), recipes.TCOD, task_pool=64)
    turns = []
    for _ in range(4):
        batch = collect(tasks=1, group_size=1)
        turns.append(len(batch.offsets("token")) - 1)
        collect.end_iteration(batch, {})
    assert turns == [1, 2, 2, 3]
    assert check_resumes(recipes.TCOD, in_turn("look")) >= 2


def test_evaluation_has_no_limit() -> None:
    collect = arl.Collector(script(in_turn("look", "look", "<answer>right</answer>")), Riddles(), recipes.TCOD)
    assert collect.evaluate(tasks=1).successes.tolist() == [1]
