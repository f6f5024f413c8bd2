"""Rejected groups: replaced by another task, retried, or extended by members; against a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import SmallWorld

from agentrl_core import Batch, Collector, Store, recipes, replay
from agentrl_core.collect import BatchPolicy
from agentrl_core.component import Where
from agentrl_core.env import StepResult, Task
from agentrl_core.exceptions import AgentRLWarning, RecipeError
from agentrl_core.select import Band, ComposedSelector, DynamicSampling, Survey

TASKS, SIZE, POOL = 5, 2, 24


def seldom(task: Task, seed: int, actions: list[str]) -> StepResult:
    """Solved once in three times, so that two of five groups of two differ; every seventh task is never solved."""
    del actions
    success = seed % 3 == 0 and int(task.task_id.split()[1]) % 7 > 0
    return StepResult(reward=float(success), terminated=True, success=success)


def collector(admit: DynamicSampling, store: Store | None = None, seed: int = 0, **options: Any) -> Collector:
    world = SmallWorld(seldom)
    recipe = recipes.GRPO.replace(admit=admit, **options)
    return Collector(world, world, recipe, store=store, seed=seed, task_pool=POOL)


def rolled_out(batch: Batch) -> list[tuple[int, list[float]]]:
    """Return the task and its members' rewards of each group that was rolled out, in order."""
    table = batch.trajectories
    groups = np.asarray(table.column("group_id"))
    tasks, rewards = table.column("task_id"), np.asarray(table.column("reward"))
    rows = [np.flatnonzero(groups == group) for group in dict.fromkeys(groups.tolist())]
    return [(int(tasks[group_rows[0]].split()[1]), rewards[group_rows].tolist()) for group_rows in rows]


def drawn_groups(batch: Batch) -> list[tuple[int, list[float]]]:
    """Return the task and its members' rewards of each drawn group, in order."""
    groups, rewards = batch.keys("group_id", "draw"), np.asarray(batch.column("reward", "draw"))
    tasks = batch.texts("task_id", "draw")
    rows = [np.flatnonzero(groups == group) for group in range(batch.num_groups)]
    return [(int(tasks[group_rows[0]].split()[1]), rewards[group_rows].tolist()) for group_rows in rows]


def plain(groups: list[tuple[int, list[float]]], admit: DynamicSampling) -> tuple[list[tuple[int, list[float]]], int]:
    """Return the groups to admit among those rolled out, in order, and the number of retries."""
    remaining, admitted = list(groups), []
    waiting: list[tuple[int, int, list[float]]] = []
    again = 0
    seen: set[int] = set()
    for _ in range(admit.max_rounds):
        fresh = max(TASKS - len(admitted) - len(waiting), 0)
        round_ = [remaining.pop(0) for _ in range(len(waiting) + fresh)]
        assert [task for task, _, _ in waiting] == [task for task, _ in round_[: len(waiting)]]
        again += len(waiting)
        others = {task for task, _ in round_[len(waiting) :]}
        assert len(others) == fresh
        assert not others & seen, "other tasks take the places"
        seen |= others
        old = [(tried, before) for _, tried, before in waiting] + [(0, [])] * fresh
        waiting = []
        for (task, rewards), (tried, before) in zip(round_, old, strict=True):
            members = before + rewards
            if len(set(members)) > 1:
                admitted.append((task, members))
            elif admit.rejected != "replace" and tried < admit.tries:
                waiting.append((task, tried + 1, members if admit.rejected == "extend" else []))
        if len(admitted) >= TASKS:
            break
    assert not remaining
    return admitted, again


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tries", [1, 3])
@pytest.mark.parametrize("rejected", ["replace", "regenerate", "extend"])
def test_rejected_groups_are_handled_as_in_a_plain_loop(rejected: Any, tries: int, seed: int) -> None:
    admit = DynamicSampling(Band(), max_rounds=4, rejected=rejected, tries=tries)
    batch = collector(admit, seed=seed)(tasks=TASKS, group_size=SIZE)
    expected, again = plain(rolled_out(batch), admit)
    assert drawn_groups(batch) == expected
    assert expected
    assert (again > 0) == (rejected != "replace")
    assert any(len(members) > SIZE for _, members in expected) == (rejected == "extend")
    advantage = np.asarray(recipes.GRPO.credit(batch).column("advantage", "draw"))
    for group in range(batch.num_groups):
        rows = batch.keys("group_id", "draw") == group
        np.testing.assert_allclose(advantage[rows].sum(), 0.0, atol=1e-5)  # all members vote together
        assert advantage[rows].any()


@pytest.mark.parametrize("rejected", ["regenerate", "extend"])
def test_a_resumed_run_admits_the_same_groups(tmp_path: Path, rejected: Any) -> None:
    admit = DynamicSampling(Band(), rejected=rejected, tries=2)
    memory = replay.Memory(per_task=2, where=Where(column="score", above=0.5))
    options = {
        "select": ComposedSelector(survey=Survey(tasks=1, every=1)),
        "replay": replay.Inject(memory, replay.GroupFailed(), replaces="none"),
    }
    runs = []
    for name, restarts in (("whole", False), ("cut", True)):
        batches, store = [], Store.open(tmp_path / name)
        collect = collector(admit, store, **options)
        for _ in range(6):
            batch = collect(tasks=TASKS, group_size=SIZE)
            if restarts:
                store.close()
                store = Store.open(tmp_path / name)
                collect = collector(admit, store, **options)
                batch = collect(tasks=TASKS, group_size=SIZE)
            collect.end_iteration(collect.recipe.credit(batch), {})
            batches.append(
                (drawn_groups(batch), batch.column("score", "draw").tolist(), batch.column("source", "draw").tolist())
            )
        counted = dict(zip(store.tasks.column("task_id"), store.tasks.column("attempts"), strict=True))
        total = sum(len(members) for k in range(6) for _, members in rolled_out(store.batch(k)) if members)
        assert store.verify() == []
        store.close()
        runs.append((batches, counted))
        assert total > 6 * TASKS * SIZE
    assert runs[0] == runs[1]
    assert any(1 in sources for _, _, sources in runs[0][0]), "stored draws were injected"


def test_retries_of_rejected_tasks_are_refused_with_a_batch_policy() -> None:
    world = SmallWorld(seldom)
    recipe = recipes.GRPO.replace(admit=DynamicSampling(rejected="extend"))
    collect = Collector(world, world, recipe, task_pool=POOL, batch_policy=BatchPolicy(oversample=2.0))
    with pytest.raises(RecipeError, match=r"retries rejected tasks.*omit batch_policy"):
        collect(tasks=2, group_size=2)


def test_groups_are_judged_by_the_reward_though_the_score_is_shaped() -> None:
    """All members succeed; noise on their scores makes them differ while their rewards do not."""
    world = SmallWorld(lambda *_: StepResult(reward=1.0, terminated=True, success=True))

    def admitted(column: str) -> int:
        admit = DynamicSampling(column=column, max_rounds=2)
        recipe = recipes.GRPO.replace(reward=recipes.REDIT.reward, admit=admit)
        return Collector(world, world, recipe, task_pool=POOL)(tasks=TASKS, group_size=SIZE).num_groups

    assert admitted("score") == TASKS
    with pytest.warns(AgentRLWarning, match="admitted none of the 20 draws"):
        assert admitted("reward") == 0
