"""Tree-OPO: branches after turns of a teacher's search, with values from the teacher's results."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from mazes import Maze
from rollouts import small
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.recipes.tree_opo import PrefixBaseline, TeacherPrefixes
from agentrl_core.rollout import MonteCarlo, SearchTree

DOORS: dict[str, dict[int, str | float]] = {
    "a": {3: "b", 4: "c"},
    "b": {3: "d", 4: 0.0},
    "c": {3: 0.5, 4: "d"},
    "d": {3: 1.0, 4: 0.0},
}


def maze() -> Maze:
    return Maze(DOORS, lambda seed, place, number: (3 + (seed >> 3) % 2, -0.7))  # noqa: ARG005


def search(folder: Path) -> arl.Batch:
    """Store a teacher's search of two tasks; return its batch."""
    with arl.Store.open(folder) as store:
        teacher = arl.Collector(
            maze(), maze(), recipes.GRPO.replace(rollout=MonteCarlo(iterations=4, samples=3)), store=store, task_pool=2
        )
        searched = teacher(tasks=2, group_size=1)
        teacher.end_iteration(teacher.recipe.credit(searched), {})
    return searched


@pytest.mark.filterwarnings("ignore:tree_opo.TeacherPrefixes. teacher=.* has no search of some tasks")
def test_a_student_continues_from_prefixes_of_a_teacher_search(tmp_path: Path) -> None:
    searched = search(tmp_path / "teacher")
    recipe = recipes.TREE_OPO.replace(rollout=TeacherPrefixes(teacher=str(tmp_path / "teacher")))
    world = maze()
    engine = RecordingEngine(world)
    collect = arl.Collector(engine, world, recipe, seed=7, task_pool=3)
    batch = collect(tasks=3, group_size=6)
    assert check_sampled(batch, engine)
    worth = batch.column("prefix_value", "draw")
    tasks = pl.DataFrame(batch.trajectories)["task_id"].to_list()
    groups = pl.DataFrame(searched.trajectories).select("task_id", "group_id").unique()
    trees = {task: SearchTree.of(searched, group) for task, group in groups.iter_rows()}
    assert set(trees) == {"train 0", "train 1"}
    untrained = batch.column("trainable", "token") == 0
    offsets = batch.offsets("token")[batch.offsets("step")]
    behind = [int(untrained[begin:end].sum()) for begin, end in itertools.pairwise(offsets)]
    for draw, task in enumerate(tasks):
        if task not in trees:
            assert (worth[draw], behind[draw]) == (0.0, 0), "a task without a search starts at the prompt"
            continue
        tree = trees[task]
        # Actions of two tokens: the number of given turns, for the place with this value.
        places = {(len(tree.path(row)), round(float(tree.value[row]), 5)) for row in tree.expandable()}
        begin = float(np.average(tree.value[tree.parent < 0], weights=tree.visits[tree.parent < 0]))
        assert (behind[draw] // 2, round(float(worth[draw]), 5)) in places | {(0, round(begin, 5))}
    assert {0, 1} <= {count // 2 for count in behind}, "of mixed depth"
    credited = recipe.credit(batch)
    advantage = credited.column("advantage", "draw")
    groups_of = pl.DataFrame({"group": batch.keys("group_id", "draw"), "advantage": advantage})
    np.testing.assert_allclose(groups_of.group_by("group").mean()["advantage"], 0.0, atol=1e-6)


def test_the_best_value_of_the_prompt_is_the_largest_reward_of_the_search(tmp_path: Path) -> None:
    searched = search(tmp_path / "teacher")
    program = TeacherPrefixes(teacher=str(tmp_path / "teacher"), value="best")
    collect = arl.Collector(maze(), maze(), recipes.TREE_OPO.replace(rollout=program), seed=7, task_pool=2)
    batch = collect(tasks=2, group_size=12)
    untrained = batch.column("trainable", "token") == 0
    offsets = batch.offsets("token")[batch.offsets("step")]
    at_prompt = [not untrained[begin:end].any() for begin, end in itertools.pairwise(offsets)]
    assert any(at_prompt)
    groups = pl.DataFrame(searched.trajectories).select("task_id", "group_id").unique()
    largest = {task: np.nanmax(SearchTree.of(searched, group).best) for task, group in groups.iter_rows()}
    for worth, task, starts_here in zip(
        batch.column("prefix_value", "draw"), pl.DataFrame(batch.trajectories)["task_id"], at_prompt, strict=True
    ):
        assert not starts_here or worth == pytest.approx(largest[task])


def test_a_draw_counts_as_much_as_it_is_better_than_its_place() -> None:
    batch = small([(0, [1]), (0, [1]), (0, [1])]).with_columns(
        "draw", score=[1.0, 0.0, 1.0], prefix_value=[0.5, 0.5, 0.0]
    )
    # 1 - 0.25, 0 - 0.25, 1 - 0: 0.75, -0.25, 1, with mean 0.5.
    advantage = PrefixBaseline()(batch).column("advantage", "draw")
    np.testing.assert_allclose(advantage, [0.25, -0.75, 0.5], atol=1e-6)
    np.testing.assert_allclose(
        PrefixBaseline(alpha=0.0)(batch).column("advantage", "draw"), [1 / 3, -2 / 3, 1 / 3], atol=1e-6
    )
