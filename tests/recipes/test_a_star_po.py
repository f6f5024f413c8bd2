"""A*-PO: optimal values from a survey, and advantages computed from them, in a real collection."""

from __future__ import annotations

import math

import numpy as np
from small_world import SmallWorld

from agentrl_core import Collector
from agentrl_core.env import StepResult, Task
from agentrl_core.recipes import A_STAR_PO


def graded(task: Task, seed: int, actions: list[str]) -> StepResult:
    """Task 0 is never solved; the seed decides about the others."""
    del actions
    success = task.task_id != "train 0" and seed % 2 == 0
    return StepResult(reward=float(success), terminated=True, success=success)


def test_advantages_are_against_the_optimal_value() -> None:
    world = SmallWorld(graded)
    collect = Collector(world, world, A_STAR_PO, seed=2, task_pool=6)
    first = A_STAR_PO.credit(collect(tasks=1, group_size=1))
    assert np.isnan(first.column("task_value_star", "draw")).tolist() == [True]
    assert first.column("keep", "draw").tolist() == [0], "nothing to regress on before the survey"
    collect.end_iteration(first, {})
    table = first.trajectories
    surveyed: dict[str, list[float]] = {}
    draw_ids = set(first.column("trajectory_id", "draw").tolist())
    ids = np.asarray(table.column("trajectory_id")).tolist()
    for number, task_id, reward in zip(ids, table.column("task_id"), table.column("reward"), strict=True):
        if number not in draw_ids:
            surveyed.setdefault(task_id, []).append(float(reward))
    assert [len(rewards) for rewards in surveyed.values()] == [8] * 6
    batch = A_STAR_PO.credit(collect(tasks=4, group_size=1))
    tasks = batch.texts("task_id", "draw")
    assert "train 0" not in tasks
    for row, task_id in enumerate(tasks):
        rewards = surveyed[task_id]
        value = 0.5 * math.log(sum(math.exp(reward / 0.5) for reward in rewards) / 8)
        assert math.isclose(batch.column("task_value_star", "draw")[row], value, rel_tol=1e-6)
        advantage = batch.column("score", "draw")[row] - value
        assert math.isclose(batch.column("advantage", "draw")[row], advantage, rel_tol=1e-5, abs_tol=1e-6)
