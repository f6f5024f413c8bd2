"""Searches over turns and states, traced by hand, and continued from a store."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mazes import Maze, in_turn
from sampled import RecordingEngine, check_sampled
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes, rollout
from agentrl_core.env import StepResult, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipes.bfs_prover_v2 import BestFirst
from agentrl_core.recipes.props import UnderSampled
from agentrl_core.rollout import Group, MonteCarlo, Rollout, SearchTree

FINISHED, ABORTED, PRUNED = 0, 2, 3
TREES: list[Any] = []
DOORS = {
    "a": {3: "b", 4: "c", 5: 0.0},
    "b": {3: "d", 4: 0.0},
    "c": {3: "b", 4: "e"},
    "d": {3: 1.0, 4: 0.0},
    "e": {3: 0.0, 4: 0.0},
}
SAYS = {
    "a": [(3, -1.0), (4, -0.5), (5, -0.1)],
    "b": [(3, -1.0), (4, -0.1), (4, -0.1)],
    "c": [(3, -0.25), (4, -2.0), (4, -2.0)],
    "d": [(4, -0.1), (3, -0.5), (4, -0.1)],
}


def searched(program: Rollout, maze: Any, *, size: int = 1, **options: Any) -> arl.Batch:
    """Search in one group, and check that exactly the sampled tokens are trained."""
    engine = RecordingEngine(maze)
    collect = arl.Collector(engine, maze, recipes.GRPO.replace(rollout=program), task_pool=1, **options)
    batch = collect(tasks=1, group_size=size)
    assert check_sampled(batch, engine) or not batch.num_draws
    return batch


def rows(batch: arl.Batch, name: str = "trajectories") -> pl.DataFrame:
    return pl.DataFrame(getattr(batch, name))


class Looking(BestFirst):
    """A search that keeps the final values of its tree."""

    async def group(self, group: Group) -> None:
        await super().group(group)
        TREES[:] = [group.tree]


def test_best_first_by_hand() -> None:
    # Round 1 in a: to b (-1), to c (-0.5), an end. Round 2 in c, the likeliest: to b, which is visited, and twice to e
    # (-0.5 - 2). Round 3 in b (-1), before e (-2.5): to d (-2), two ends. Round 4 in d: solved.
    batch = searched(Looking(samples=3, width=1, budget=64), Maze(DOORS, in_turn(SAYS)))
    [tree] = TREES
    nodes = [(0, -1, -1.0), (1, -1, -0.5), (2, -1, -0.1), (3, 1, -0.75), (4, 1, -2.5), (5, 1, -2.5), (6, 0, -2.0)]
    assert tree.parent.tolist() == [-1, -1, -1, 1, 1, 1, 0, 0, 0, 6, 6, 6]
    np.testing.assert_allclose(tree.path_logprob[:7], [logprob for _, _, logprob in nodes], rtol=1e-6)
    assert tree.repeated() == [3, 5]
    assert tree.solution() == [0, 6, 10]
    assert tree.pairs() == [(0, 2), (6, 7), (6, 8), (10, 9), (10, 11)]
    # From a it is three turns to the solved end, from b two, from c as many as from b and one more.
    states = dict(zip(tree.next_state.tolist(), range(12), strict=True))
    row_of = {"b": 0, "c": 1, "e": 4, "d": 6, "solved": 10, "end": 2}
    of = {name: int(tree.next_state[row]) for name, row in row_of.items()}
    assert {name: int(tree.distance[state]) for name, state in of.items()} == {
        "b": 2,
        "c": 3,
        "e": -1,
        "d": 1,
        "solved": 0,
        "end": -1,
    }
    assert {name: tree.status[state] for name, state in of.items()} == {
        "b": "solved",
        "c": "solved",
        "e": "open",
        "d": "solved",
        "solved": "solved",
        "end": "failed",
    }
    assert len(states) == 12 - 2, "two turns led where others had been"
    status_list = rows(batch)["status"].to_list()
    assert (status_list.count(FINISHED), status_list.count(PRUNED), status_list.count(ABORTED)) == (6, 2, 1)
    assert sorted(batch.column("reward", "draw").tolist()) == [0.0] * 5 + [1.0]
    stored = SearchTree.of(batch, 0)
    assert len(stored) == 12
    assert (len(stored.solution()), len(stored.pairs())) == (3, 5)
    assert sorted(stored.path_logprob.tolist()) == sorted(tree.path_logprob.tolist())
    assert sorted(stored.distance.tolist()) == sorted(tree.distance.tolist())
    assert stored.value[stored.solution()[-1]] == 1.0


def test_best_first_of_deep_states_by_hand() -> None:
    # Rounds 1 and 2 in a and c as above. Then e, at depth 2, has -2.5 / 4, more than -1 / 1 of b; it only ends. Round
    # 4 in b: d, at depth 2.
    replies = {**SAYS, "e": [(3, -0.5), (4, -0.5), (4, -0.5)]}
    searched(Looking(samples=3, width=1, depth_exponent=2.0, budget=64), Maze(DOORS, in_turn(replies)))
    [tree] = TREES
    assert tree.parent.tolist() == [-1, -1, -1, 1, 1, 1, 4, 4, 4, 0, 0, 0, 9, 9, 9]
    assert tree.solution() == [0, 9, 13]


def test_best_first_ends_with_its_budget_or_without_hope() -> None:
    batch = searched(BestFirst(samples=3, budget=4), Maze(DOORS, in_turn(SAYS)))
    assert len(SearchTree.of(batch, 0)) == 4, "three in a, one in c"
    dead = {"a": {3: "b", 4: 0.0}, "b": {3: 0.0}}
    replies = in_turn({"a": [(3, -0.5), (4, -0.5)], "b": [(3, -0.5)] * 2})
    tree = SearchTree.of(searched(BestFirst(samples=2), Maze(dead, replies)), 0)
    assert len(tree) == 4
    assert set(tree.status) == {"failed"}


def test_a_stored_search_continues_in_a_later_iteration(tmp_path: Path) -> None:
    replies = {**SAYS, "a": SAYS["a"] * 2}
    recipe = recipes.GRPO.replace(rollout=BestFirst(samples=3, budget=6, searches=str(tmp_path / "run")))
    maze = Maze(DOORS, in_turn(replies))
    with arl.Store.open(tmp_path / "run") as store:
        collect = arl.Collector(maze, maze, recipe, store=store, task_pool=1)
        first = collect(tasks=1, group_size=1)
        assert len(SearchTree.of(first, 0)) == 6
        assert not SearchTree.of(first, 0).solution()
        collect.end_iteration(recipe.credit(first), {})
        before = dict(maze.request_counts)
        assert before == {"a": 3, "c": 3}
        second = collect(tasks=1, group_size=1)
        # After the stored turns it tries b, which came first, and then d: six more, and nothing again.
        assert maze.request_counts == {"a": 3, "c": 3, "b": 3, "d": 3}
        collect.end_iteration(recipe.credit(second), {})
    assert sorted(second.column("reward", "draw").tolist()) == [0.0] * 4 + [1.0]
    # The actions of the first iteration are replayed and not trained: one token and the end of the turn.
    trained = second.column("trainable", "token")
    assert trained.sum() < len(trained)
    solved = int(np.flatnonzero(second.column("reward", "draw") == 1.0)[0])
    begin, end = second.offsets("token")[second.offsets("step")[solved : solved + 2]]
    assert trained[begin:end].tolist() == [0, 0, 1, 1, 1, 1]
    # The newest search of the task is solved.
    stored = rollout.StoredSearches(str(tmp_path / "run")).find("train 0")
    assert stored is not None
    group_id = stored[1]
    assert len(SearchTree.of(stored[0], group_id).solution()) == 3
    assert rollout.StoredSearches(str(tmp_path / "run")).find("train 0", before=0) is None
    assert rollout.StoredSearches("").find("train 0") is None


# One turn of the first run leads from a to b. By hand, after it: best first tries b twice, to d and to an end, and d
# twice, the second time out; a walk of Monte Carlo goes down to b and is played through d, out.
GOING_ON: dict[str, tuple[Callable[[str], Rollout], dict[str, list[tuple[int, float]]], list[float]]] = {
    "best first": (
        lambda folder: BestFirst(samples=2, budget=4, searches=folder),
        {"b": [(3, -1.0), (4, -0.1)], "d": [(4, -0.1), (3, -0.5)]},
        [0.0, 0.0, 1.0],
    ),
    "monte carlo": (
        lambda folder: MonteCarlo(iterations=1, samples=1, depth=3, searches=folder),
        {"b": [(3, -1.0)], "d": [(3, -0.5)]},
        [1.0],
    ),
}


@pytest.mark.parametrize("name", GOING_ON)
def test_a_stored_search_continues_in_another_run(name: str, tmp_path: Path) -> None:
    program, replies, rewards = GOING_ON[name]
    first = recipes.GRPO.replace(rollout=BestFirst(samples=1, budget=1))
    maze = Maze(DOORS, in_turn({"a": [(3, -1.0)]}))
    with arl.Store.open(tmp_path / "run") as store:
        collect = arl.Collector(maze, maze, first, store=store, task_pool=1)
        batch = collect(tasks=1, group_size=1)
        assert len(SearchTree.of(batch, 0)) == 1
        collect.end_iteration(batch, {})
    other = Maze(DOORS, in_turn(replies))
    batch = searched(program(str(tmp_path / "run")), other, seed=7)
    assert other.request_counts == {place: len(samples) for place, samples in replies.items()}, (
        "nothing is tried in a again"
    )
    assert sorted(batch.column("reward", "draw").tolist()) == rewards
    tree = SearchTree.of(batch, 0)
    solution = tree.solution()
    assert len(solution) == 3
    assert tree.parent[solution].tolist() == [-1, *solution[:-1]]
    assert tree.value[solution[-1]] == 1.0


def test_a_tree_is_that_of_its_group() -> None:
    class Late(Rollout):
        async def group(self, group: Group) -> None:
            await group.run(group.start_many(1))
            batch = batches[0]
            assert len(group.tree) == 2
            with pytest.raises(InvalidInputError, match="already has a tree; call resume_search before"):
                group.resume_search(batch, 0)

    doors: dict[str, dict[int, str | float]] = {"a": {3: "b"}, "b": {3: 1.0}}
    replies = in_turn({"a": [(3, -0.5)] * 2, "b": [(3, -0.5)] * 2})
    batches: list[arl.Batch] = []
    maze = Maze(doors, replies)
    batches.append(searched(rollout.Independent(), maze))
    searched(Late(), maze)


def test_monte_carlo_by_hand() -> None:
    doors = {"a": {3: "b", 4: "c"}, "b": {3: 1.0, 4: 0.0}, "c": {3: 0.0, 4: 0.5}}
    replies = {"a": [(3, -1.0), (4, -1.0)], "b": [(3, -1.0), (4, -1.0)], "c": [(3, -1.0), (4, -1.0)]}
    # 1: two branches from the beginning, worth 1 (by b) and 0 (by c). 2: b has 1 + 0.25 sqrt(ln 2) = 1.21, c 0.21: one
    # more action in b, worth 0. 3: b has 0.5 + 0.25 sqrt(ln 3 / 2) = 0.69, c 0.26, but b is full and all ends: c.
    batch = searched(MonteCarlo(iterations=3, samples=2, depth=5), Maze(doors, in_turn(replies)))
    tree = SearchTree.of(batch, 0)
    assert batch.num_draws == 4
    first = {int(row): (float(tree.value[row]), int(tree.visits[row])) for row in np.flatnonzero(tree.parent < 0)}
    assert sorted(first.values()) == [(0.25, 2), (0.5, 2)]
    assert len(tree) == 6
    forks = rows(batch, "decisions").filter(pl.col("operation") == 1)
    assert forks["round"].to_list() == [0, 0]
    rewards = sorted(
        zip(rows(batch)["parent_trajectory"].to_list(), batch.column("reward", "draw").tolist(), strict=True), key=str
    )
    assert rewards == [(0, 0.0), (2, 0.5), (None, 0.0), (None, 1.0)]
    best = tree.best_leaf()
    assert best is not None
    assert tree.value[best] == 1.0


def test_under_sampled_turns_by_hand() -> None:
    doors = {"a": {3: "b", 4: "c"}, "b": {3: 1.0, 4: 0.0}, "c": {3: 0.0}}
    likely, seldom = log(0.7), log(0.3)
    replies = in_turn({"a": [(3, likely), (4, seldom)], "b": [(3, -0.5)] * 9, "c": [(3, -0.5)] * 9})
    # Shares 1/2, 1/2: 3 lags by 0.2. Then 2/3 - 0.7 < 0: 3 again. Then 3/4 - 0.7 > 0 > 1/4 - 0.3: 4. Then 3/5: 3.
    batch = searched(UnderSampled(budget=6, initial=2, parallel=1), Maze(doors, replies))
    tree = SearchTree.of(batch, 0)
    assert tree.visits[np.flatnonzero(tree.parent < 0)].tolist() == [4, 2]
    assert rows(batch)["parent_trajectory"].to_list().count(0) == 3
    both = searched(
        UnderSampled(budget=6, initial=2, parallel=2),
        Maze(doors, in_turn({"a": [(3, likely), (4, seldom)], "b": [(3, -0.5)] * 9, "c": [(3, -0.5)] * 9})),
    )
    tree = SearchTree.of(both, 0)
    assert tree.visits[np.flatnonzero(tree.parent < 0)].tolist() == [4, 2], "walks of one call see each other"


def wandering(task: Task, seed: int, actions: list[str]) -> StepResult:
    """An episode that ends after a number of turns, with a reward; both depend on the actions."""
    del task, seed
    total = sum(sum(map(int, action.split())) for action in actions)
    if total % 5 == 0 or len(actions) >= 6:
        return StepResult(reward=float(total % 3), terminated=True, success=total % 3 == 2)
    return StepResult("x" * (total % 7), flags=4)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    samples=st.integers(1, 4),
    width=st.integers(1, 3),
    budget=st.integers(1, 20),
)
def test_budgets_are_kept(seed: int, samples: int, width: int, budget: int) -> None:
    world = SmallWorld(wandering)
    tree = SearchTree.of(searched(BestFirst(samples=samples, width=width, budget=budget), world, seed=seed), 0)
    assert 1 <= len(tree) <= budget
    program = MonteCarlo(iterations=3, samples=samples, depth=4, parallel=width)
    batch = searched(program, world, seed=seed)
    assert batch.num_draws <= program.final_group_size(1)
    assert np.diff(batch.offsets("step")).max() <= 4
    search_tree = SearchTree.of(batch, 0)
    assert all(len(search_tree.children(row)) <= samples for row in range(-1, len(search_tree)))
    lagging = searched(UnderSampled(budget=max(budget, 2), initial=2, parallel=width), world, seed=seed)
    assert lagging.num_draws == max(budget, 2)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_a_stored_search_tree_equals_the_live_one(seed: int) -> None:
    searched(program := Looking(samples=2, width=2, budget=12, until_solved=False), SmallWorld(wandering), seed=seed)
    [live] = TREES
    batch = searched(program, SmallWorld(wandering), seed=seed)
    stored = SearchTree.of(batch, 0)

    def contents(tree: SearchTree) -> list[Any]:
        before, after = tree.state, tree.next_state
        status, distance = tree.status, tree.distance
        columns = zip(tree.path_logprob, tree.visits, tree.value, before, after, strict=True)
        return sorted(
            (round(float(logprob), 6), int(visits), str(value), status[one], status[other], int(distance[one]))
            for logprob, visits, value, one, other in columns
        )

    assert contents(stored) == contents(live)
