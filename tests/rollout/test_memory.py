"""Programs read the state of the run, store facts for later iterations, and send requests to models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sampled import RecordingEngine, check_sampled
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.env import StepResult, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout import Group, Rollout, deferred_tasks


def solved_by_the_even(task: Task, seed: int, actions: list[str]) -> StepResult:
    del seed
    if len(actions) < 2:
        return StepResult("x", reward=0.25)
    return StepResult(reward=1.0, terminated=True, success=task.domain == "even")


def test_the_library_has_the_solved_trajectories_of_earlier_iterations(tmp_path: Path) -> None:
    known: list[list[int]] = []

    class Show(Rollout):
        async def group(self, group: Group) -> None:
            solved = group.library.solved()
            known.append(solved)
            solved_ids = group.library.solved(group.task.task_id)
            assert all(group.library.task_id(one) == group.task.task_id for one in solved_ids)
            if not solved_ids:
                await group.run(group.start_many(2))
                return
            assert [len(text.split()) for text in group.library.actions(solved_ids[0])] == [4, 4]
            [branch] = await group.run([group.start(prefix=group.library.prefix(solved_ids[0], turns=1))])
            assert branch.turns[0].text == group.library.actions(solved_ids[0])[0]
            await group.run(group.start_many(1))

    engine = RecordingEngine(SmallWorld(solved_by_the_even))
    with arl.Store.open(tmp_path / "run") as store:
        recipe = recipes.GRPO.replace(rollout=Show())
        collect = arl.Collector(engine, engine, recipe, store=store, task_pool=2)
        for _ in range(2):
            batch = recipe.credit(collect(tasks=2, group_size=2))
            assert check_sampled(batch, engine) > 0
            collect.end_iteration(batch, {})
    assert known[:2] == [[], []], "a library is as of the iteration's begin"
    assert [len(entries) for entries in known[2:]] == [2, 2], "one of two tasks was solved twice"
    assert known[2] == known[3]


def test_a_task_is_left_for_later() -> None:
    class Leave(Rollout):
        async def group(self, group: Group) -> None:
            one, other = await group.run(group.start_many(2))
            error = [{"role": "user", "content": "that was wrong"}]
            group.defer(Task("again", "?", "derived", {"from": group.task.task_id}), one, turns=1, messages=error)
            group.defer(group.task, other)
            with pytest.raises(InvalidInputError, match="cannot be kept"):
                group.defer(Task("odd", "?", "derived", object()), one)
            with pytest.raises(InvalidInputError, match="turns is 3, but the branch has"):
                group.defer(group.task, one, turns=3)

    world = SmallWorld()
    batch = arl.Collector(world, world, recipes.GRPO.replace(rollout=Leave()), task_pool=4)(tasks=2, group_size=2)
    ids = pl.DataFrame(batch.trajectories)["trajectory_id"].to_list()
    deferred = deferred_tasks(batch)
    assert [
        (each.task.task_id == "again", each.trajectory_id, each.turns, len(each.messages)) for each in deferred
    ] == [
        (True, ids[0], 1, 1),
        (False, ids[1], None, 0),
        (True, ids[2], 1, 1),
        (False, ids[3], None, 0),
    ]
    assert deferred[0].messages == [{"role": "user", "content": "that was wrong"}]


def test_a_state_is_read_and_not_written() -> None:
    class Read(Rollout):
        async def group(self, group: Group) -> None:
            assert dict(group.state) == {}
            with pytest.raises(TypeError):
                group.state["new"] = 1  # type: ignore[index]
            await group.run(group.start_many(1))

    world = SmallWorld()
    collect = arl.Collector(world, world, recipes.GRPO.replace(rollout=Read()), task_pool=4)
    assert collect(tasks=1, group_size=1).num_draws == 1


def test_models_are_queried_for_the_branches_of_all_groups() -> None:
    calls: list[int] = []

    def quality(paths: Any) -> np.ndarray:
        calls.append(len(paths))
        return np.array([path.sum() for path in paths], np.float32)

    class Ask(Rollout):
        async def group(self, group: Group) -> None:
            branches = group.start_many(3)
            await group.turn(branches)
            values = await group.query("quality", branches)
            assert values.tolist() == [float(branch.tokens.sum()) for branch in branches]
            branches[int(values.argmin())].stop("looks bad")
            await group.run([branch for branch in branches if not branch.over])

    world = SmallWorld()
    recipe = recipes.GRPO.replace(rollout=Ask())
    batch = arl.Collector(world, world, recipe, task_pool=4, models={"quality": quality})(tasks=3, group_size=3)
    assert batch.num_draws == 6
    assert sum(calls) == 9
    with pytest.raises(InvalidInputError, match=r"model 'quality' does not exist \(available: none\)"):
        arl.Collector(world, world, recipe, task_pool=4)(tasks=1, group_size=1)
    with pytest.raises(InvalidInputError, match="returned 1 numbers for 3 paths"):
        arl.Collector(world, world, recipe, task_pool=4, models={"quality": lambda _: [1.0]})(tasks=1, group_size=1)
