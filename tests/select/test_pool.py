"""The pool: tasks in turn, created on demand, with columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import SmallWorld

from agentrl_core import Collector, Store, select
from agentrl_core.env import Task
from agentrl_core.exceptions import InvalidInputError, NotFoundError
from agentrl_core.recipes import GRPO
from agentrl_core.recipes.vade import LearningSignal
from agentrl_core.select import ComposedSelector, Pool
from agentrl_core.select.pool import MixedTasks


class CountedTasks(Sequence[Task]):
    """A sequence that creates its tasks on access, and counts them."""

    def __init__(self, count: int, columns: dict[str, Any] | None = None, name: str = "made") -> None:
        self.count = count
        self.columns = columns or {}
        self.name = name
        self.requested_rows: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(self.count))]
        if not 0 <= row < self.count:
            raise IndexError(row)
        self.requested_rows.append(row)
        return Task(f"{self.name} {row}", "?", "sums", None)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 6), min_size=1))
def test_worlds_take_turns(lengths: dict[str, int]) -> None:
    worlds = {name: CountedTasks(count, {"place": np.arange(count)}, name) for name, count in lengths.items()}
    tasks = MixedTasks(worlds)
    expected = [(name, row) for row in range(max(lengths.values())) for name, count in lengths.items() if row < count]
    assert len(tasks) == len(expected)
    assert [(name, task.task_id) for name, task in tasks] == [(name, f"{name} {row}") for name, row in expected]
    assert tasks[1:3] == [tasks[place] for place in range(1, min(3, len(tasks)))]
    column = tasks.column("place")
    assert (column.tolist() if column is not None else []) == [row for _, row in expected]
    with pytest.raises(IndexError):
        tasks[len(tasks)]


def test_columns_of_the_environment() -> None:
    domains = np.array(["b", "a", "b"])
    pool = Pool(MixedTasks({"world": CountedTasks(3, {"domain": domains, "prior": np.array([0.1, 0.2, 0.3])})}))
    assert pool.domains == ["b", "a"]
    assert pool.column("domain").tolist() == [0, 1, 0]
    assert pool.column("prior").tolist() == [0.1, 0.2, 0.3]
    with pytest.raises(NotFoundError, match="the pool has no column 'nope', only attempts, successes, last_version"):
        pool.column("nope")
    with pytest.raises(InvalidInputError, match="column 'prior' has 2 values for 3 tasks"):
        Pool(MixedTasks({"world": CountedTasks(3, {"prior": np.zeros(2)})})).column("prior")
    one = MixedTasks({"a": CountedTasks(1, {"prior": np.zeros(1)}), "b": CountedTasks(1)})
    assert one.column("prior") is None


class Large(SmallWorld):
    """Ten million tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.task_list: CountedTasks | None = None

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> Any:
        assert start == 0
        self.task_list = self.task_list or CountedTasks(count, name=split)
        return self.task_list


@pytest.mark.parametrize("score", [None, LearningSignal()])
def test_only_tasks_that_are_chosen_are_made(score: select.TaskScore | None) -> None:
    world = Large()
    recipe = GRPO.replace(
        name="large", select=ComposedSelector(score=score, sample=select.TopSampler(among=16, posterior=True))
    )
    collect = Collector(world, world, recipe, seed=1, task_pool=10**7)
    for _ in range(2):
        batch = recipe.credit(collect(tasks=3, group_size=2))
        collect.end_iteration(batch, {})
    assert world.task_list is not None
    assert 6 <= len(set(world.task_list.requested_rows)) <= 7  # the selected ones, and the first, which is inspected


def test_an_iteration_touches_the_task_rows_of_its_batch_alone(tmp_path: Path) -> None:
    """Only rows of tasks that were rolled out are written, however many were known before."""
    world = Large()
    recipe = GRPO.replace(
        name="large", select=ComposedSelector(score=LearningSignal(), sample=select.TopSampler(among=4))
    )
    with Store.open(tmp_path, sync="never") as store:
        collect = Collector(world, world, recipe, store=store, seed=1, task_pool=10**7)
        known: set[str] = set()
        for iteration in range(12):
            before = len(store.tasks)
            collect.end_iteration(recipe.credit(collect(tasks=3, group_size=2)), {})
            rolled_out = set(store.batch(iteration).trajectories.column("task_id"))
            assert len(rolled_out) == 3
            task_rows = store.tasks.column("task_id")[before:]
            assert sorted(task_rows) == sorted(rolled_out), "one row a task, and none of those before"
            known |= rolled_out
            state = collect._now().components["select[0].ComposedSelector"]
            assert len(state["rows"]) == len(known), "nothing is kept of a task that nobody tried"
            assert all(len(column) == len(known) for column in state["track"].values() if np.ndim(column))
        assert len(known) > 30


def test_facts_come_from_the_task_table() -> None:
    world = SmallWorld()
    collect = Collector(world, world, GRPO, seed=1, task_pool=8)
    collect.end_iteration(GRPO.credit(collect(tasks=3, group_size=4)), {})
    pool = collect._known_pool(collect._now().tasks)
    assert sorted(pool.column("attempts").tolist()) == [0] * 5 + [4] * 3
    assert sorted(pool.column("uses").tolist()) == [0] * 5 + [1] * 3
    assert (pool.column("successes") <= pool.column("attempts")).all()
    assert sorted(pool.column("last_version").tolist()) == [-1] * 5 + [0] * 3
    assert pool.domains == ["even", "odd"]
