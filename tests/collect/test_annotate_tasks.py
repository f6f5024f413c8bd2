"""Task columns are recomputed before each selection."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.exceptions import InvalidInputError, NotFoundError

TASKS = ["train 0", "train 1", "train 2", "train 3"]


def sizes(batch: arl.Batch) -> dict[str, int]:
    """Return the rollouts of each task."""
    names, counts = np.unique(batch.texts("task_id", "draw"), return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def collector(store: arl.Store | None = None) -> arl.Collector:
    world = SmallWorld()
    return arl.Collector(world, world, recipes.V0, store=store, task_pool=4, seed=2)


def test_budgets_follow_the_numbers_of_each_iteration(tmp_path: Path) -> None:
    """Of 32 rollouts, tasks near 1/2 get more than those near 1, and equal tasks get equal numbers."""
    with arl.Store.open(tmp_path / "run") as store:
        collect = collector(store)
        group_sizes = []
        for prior in ([0.5, 0.5, 0.9, 0.9], [0.9, 0.9, 0.5, 0.5], dict.fromkeys(TASKS, 0.5)):
            collect.annotate_tasks("prior", prior)
            batch = recipes.V0.credit(collect(tasks=4, group_size=8))
            group_sizes.append([sizes(batch)[task] for task in TASKS])
            collect.end_iteration(batch, {})
    assert [sum(counts) for counts in group_sizes] == [32, 32, 32]
    assert group_sizes == [[14, 14, 2, 2], [2, 2, 14, 14], [8, 8, 8, 8]]


def test_equal_numbers_give_an_equal_batch() -> None:
    first, other = collector(), collector()
    for each, prior in ((first, [0.5, 0.9, 0.9, 0.1]), (other, dict(zip(TASKS, [0.5, 0.9, 0.9, 0.1], strict=True)))):
        each.annotate_tasks("prior", prior)
    assert sizes(first(tasks=4, group_size=4)) == sizes(other(tasks=4, group_size=4))


def test_a_missing_number_is_reported_before_anything_is_rolled_out() -> None:
    with pytest.raises(NotFoundError, match=r"no column 'prior', only .*Collector\.annotate_tasks\('prior', values\)"):
        collector()(tasks=4, group_size=4)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("attempts", [0.0] * 4, "name='attempts' cannot be the name of a column"),
        ("two words", [0.0] * 4, "name='two words' cannot be the name of a column"),
        (3, [0.0] * 4, "name=3 cannot be the name of a column"),
        ("prior", [0.5] * 3, "values has 3 rows for 4 tasks"),
        ("prior", 0.5, "values has no rows for 4 tasks"),
        ("prior", ["a"] * 4, "values: row 0 is 'a'; give a list with one number for each task"),
        ("prior", dict.fromkeys(TASKS[1:], 0.5), "task 'train 0' has none"),
        ("prior", dict.fromkeys([*TASKS, "other"], 0.5), "there is no task 'other'"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(name: object, values: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        collector().annotate_tasks(name, values)  # type: ignore[arg-type]
