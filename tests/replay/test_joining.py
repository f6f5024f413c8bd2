"""Trajectories that join a batch, their votes, and rejected ones."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pytest
from replayed import grow, keep, scored
from small_world import SmallWorld

from agentrl_core import Batch, Collector, Forest, Store, replay
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, Where
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipes import GRPO
from agentrl_core.replay.base import draw_reasons


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Iteration 0 has a success of `a` (trajectory 1) and of `b` (trajectory 2)."""
    store = Store.open(tmp_path / "run")
    keep(store, grow(0, {"a": [0, 1], "b": [1, 0]}))
    return store


def table(batch: Batch) -> pl.DataFrame:
    return pl.DataFrame(batch.draws)


def test_a_draw_takes_the_place_of_another_and_votes_in_its_group(store: Store) -> None:
    batch = grow(1, {"a": [0, 0], "c": [0, 1]})
    group = int(batch.column("group_id", "draw")[0])
    draws = replay.Draws.of([1], votes_in=group, replaces=0, old_logprob="recomputed", reason="a success")
    joined = scored(batch.with_stored_draws(store.trajectory_batch([1]), draws))
    assert joined.column("score", "draw").tolist() == [1, 0, 0, 1]
    assert joined.keys("group_id", "draw").tolist() == [0, 0, 1, 1]
    assert joined.column("source", "draw").tolist() == [1, 0, 0, 0]
    assert joined.column("old_logprob", "draw").tolist() == [1, 0, 0, 0]
    assert joined.column("position", "draw").tolist() == [0, 1, 2, 3]
    assert draw_reasons(joined) == ["a success", None, None, None]
    assert len(joined.trajectories) == 5, "what gave way is there, undrawn"
    again = store.rebase(joined)
    store.append(again, iteration=1)
    store.flush()
    assert store.batch(1).column("trajectory_id", "draw").tolist() == again.column("trajectory_id", "draw").tolist()
    assert len(store.trajectories) == 8, "the stored trajectory was not written again"
    store.close_iteration(again, {})
    assert store.verify() == []


def test_stored_draws_join_their_own_groups_or_new_ones(store: Store) -> None:
    batch = grow(1, {"a": [0, 1]})
    joined = batch.with_stored_draws(store.trajectory_batch([2, 3]), replay.Draws.of([2, 3]))
    stored = int(pl.DataFrame(store.draws)["group_id"][2])
    assert joined.column("group_id", "draw")[2:].tolist() == [stored, stored]
    with pytest.raises(InvalidInputError, match="is in the batch already"):
        joined.with_stored_draws(store.trajectory_batch([2]), replay.Draws.of([2]))
    anew = batch.with_stored_draws(
        store.trajectory_batch([0, 2, 3]), replay.Draws.of([0, 2, 3], votes_in=-2, new_group=[7, 7, 9])
    )
    groups = anew.column("group_id", "draw")
    assert anew.keys("group_id", "draw").tolist() == [0, 0, 1, 1, 2]
    assert not set(groups[2:].tolist()) & set(pl.DataFrame(store.draws)["group_id"].to_list())


def test_columns_of_draws_are_carried_over_and_missing_elsewhere(store: Store) -> None:
    batch = grow(1, {"a": [0, 1]})
    first = batch.with_stored_draws(
        store.trajectory_batch([1]), replay.Draws.of([1], votes_in=-2, columns={"share": np.array([0.25], np.float32)})
    )
    assert np.array_equal(first.column("share", "draw"), [np.nan, np.nan, 0.25], equal_nan=True)
    draws = replay.Draws.of([2], votes_in=-2, columns={"pair": np.array([5])})
    second = first.with_stored_draws(store.trajectory_batch([2]), draws)
    assert np.array_equal(second.column("share", "draw"), [np.nan, np.nan, 0.25, np.nan], equal_nan=True)
    assert second.column("pair", "draw").tolist() == [-1, -1, -1, 5]
    rebased = store.rebase(second)
    store.append(rebased, iteration=1)
    store.flush()
    store.close_iteration(rebased.with_columns("draw", share=np.ones(4, np.float32)), {})
    assert store.batch(1).column("share", "draw").tolist() == [1.0] * 4


def test_draws_of_the_batch_itself_can_be_pairs(store: Store) -> None:
    batch = grow(1, {"a": [0.0, 2.0, 1.0], "b": [1.0, 1.0]})
    draws = replay.Pairs(matching="all").mix({}, batch, key=0)
    assert draws is not None
    # By the better score: (1, 0), (1, 2), (2, 0); `b` has no pair.
    assert draws.trajectory_ids.tolist() == [-2, -1, -2, -3, -3, -1]
    joined = scored(batch.with_stored_draws(store.trajectory_batch([]), draws))
    assert joined.column("score", "draw").tolist() == [0, 2, 1, 1, 1, 2, 0, 2, 1, 1, 0]
    assert joined.column("pair", "draw").tolist() == [-1] * 5 + [0, 0, 1, 1, 2, 2]
    assert joined.keys("group_id", "draw").tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    rebased = store.rebase(joined)
    store.append(rebased, iteration=1)
    store.close_iteration(rebased, {})
    assert store.verify() == []


def test_a_draw_without_a_vote_is_excluded_from_statistics(store: Store) -> None:
    batch = grow(1, {"a": [0, 1]})
    group = int(batch.column("group_id", "draw")[0])
    plain = GroupRelative()(batch).column("advantage", "draw").tolist()
    joined = scored(
        batch.with_stored_draws(store.trajectory_batch([1]), replay.Draws.of([1], votes_in=group, votes=False))
    )
    assert GroupRelative()(joined).column("advantage", "draw")[:2].tolist() == plain
    voting = scored(batch.with_stored_draws(store.trajectory_batch([1]), replay.Draws.of([1], votes_in=group)))
    assert GroupRelative()(voting).column("advantage", "draw")[:2].tolist() != plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trajectory_ids": [77]}, "which is not in stored"),
        ({"votes_in": 99}, "which is not a group of the batch"),
        ({"replaces": 2}, "the batch has 2 draws"),
        ({"trajectory_ids": [1, 2], "replaces": [0, 0]}, "another draw replaces too"),
        ({"trajectory_ids": [-9]}, "the batch has 2 draws"),
    ],
)
def test_invalid_stored_draws_are_rejected(store: Store, changes: dict[str, object], message: str) -> None:
    batch = grow(1, {"a": [0, 1]})
    options = {"trajectory_ids": [1], "votes_in": -2, **changes}
    ids = options.pop("trajectory_ids")
    with pytest.raises(InvalidInputError, match=message):
        batch.with_stored_draws(store.trajectory_batch([1, 2]), replay.Draws.of(ids, **options))  # type: ignore[arg-type]


def test_behaviour_needs_tokens_that_were_sampled(tmp_path: Path) -> None:
    forest = Forest()
    forest.add_group(0, "a")
    path = forest.start(0, 0, origin="expert")
    forest.append(path, [1], kind="prompt")
    forest.append(path, [2, 3], kind="action")
    forest.step(path)
    forest.finish(path, reward=1.0)
    with Store.open(tmp_path / "run") as store:
        keep(store, scored(forest.freeze()))
        batch = grow(1, {"a": [0, 1]})
        stored = store.trajectory_batch([0])
        with pytest.raises(InvalidInputError, match='old_logprob "behaviour", but has trained tokens'):
            batch.with_stored_draws(stored, replay.Draws.of([0], votes_in=-2))
        assert batch.with_stored_draws(stored, replay.Draws.of([0], votes_in=-2, old_logprob="none")).num_draws == 3


def test_inject_by_hand(store: Store) -> None:
    """ARPO-GUI's rule: std < .05 and mean < .2 of the group; a success of the task replaces the first member."""
    closed_state = replay.Inject(
        replay.Memory(per_task=8, where=Where(column="score", above=0.1)),
        replay.GroupFailed("score", best_at_most=None, mean_below=0.2, std_below=0.05),
        replaces="first",
        old_logprob="recomputed",
    )
    state = closed_state.next(closed_state.initial_state(), IterationRecord.of(store.batch(0)))
    assert state["memory"]["trajectory_id"].tolist() == [1, 2]
    failed = grow(1, {"a": [0.0, 0.0, 0.0, 0.0]})
    draws = closed_state.inject(state, failed, key=5)
    assert draws is not None
    assert (draws.trajectory_ids.tolist(), draws.replaces.tolist(), draws.old_logprob.tolist()) == ([1], [0], [1])
    joined = scored(failed.with_stored_draws(store.trajectory_batch([1]), draws))
    score = joined.column("score", "draw").astype(np.float64)
    # 1, 0, 0, 0: mean 1/4, std (ddof 1) 1/2: advantages 3/2, -1/2, -1/2, -1/2.
    assert ((score - score.mean()) / score.std(ddof=1)).tolist() == [1.5, -0.5, -0.5, -0.5]
    assert closed_state.inject(state, grow(1, {"a": [0.0, 1.0]}), key=5) is None, "it did not fail"
    assert closed_state.inject(state, grow(1, {"c": [0.0, 0.0]}), key=5) is None, "nothing is known of the task"


def test_mix_shares_and_replaces(store: Store) -> None:
    batch = grow(1, {"c": [0, 1], "d": [1, 0]})
    mix = replay.Mix(replay.Memory(unit="group"), share=0.5)
    state = mix.next(mix.initial_state(), IterationRecord.of(store.batch(0)))
    draws = mix.mix(state, batch, key=1)
    assert draws is not None
    joined = batch.with_stored_draws(store.trajectory_batch(draws.trajectory_ids), draws)
    assert (joined.num_draws, joined.num_groups) == (8, 4), "two groups of four are half"
    replacing = replay.Mix(replay.Memory(unit="group", order="oldest"), share=1.0, replaces=True)
    draws = replacing.mix(state, batch, key=1)
    assert draws is not None
    only = batch.with_stored_draws(store.trajectory_batch(draws.trajectory_ids), draws)
    assert sorted(only.column("trajectory_id", "draw").tolist()) == [0, 1, 2, 3], "the fresh ones are not drawn"
    assert len(only.trajectories) == 8
    one = replay.Mix(replay.Memory(order="newest"), count=1, joins="task")
    state = one.next(one.initial_state(), IterationRecord.of(store.batch(0)))
    draws = one.mix(state, grow(1, {"b": [0, 0]}), key=1)
    assert draws is not None
    assert draws.trajectory_ids.tolist() == [3], "the newest of the task"


def test_a_mixture_of_memories_draws_nothing_twice(tmp_path: Path) -> None:
    """The first one takes the newest group, the second any other one: with one group there is none left for it."""
    world = SmallWorld()
    newest = replay.Mix(replay.Memory(unit="group", order="newest"), count=1)
    recipe = GRPO.replace(replay=(newest, replay.Mix(replay.Memory(unit="group"), count=1)))
    drawn = []
    with Store.open(tmp_path / "run") as store:
        for _ in range(4):
            collect = Collector(world, world, recipe, store=store, task_pool=2)  # a new process each time
            batch = recipe.credit(collect(tasks=1, group_size=2))
            rolled = pl.DataFrame(store.trajectories).select("trajectory_id", pl.col("iteration").alias("rolled"))
            groups = table(batch).join(rolled, on="trajectory_id").group_by("group_id").agg(pl.col("rolled").first())
            drawn.append(sorted(groups["rolled"].to_list()))
            assert batch.num_draws == 2 * len(groups)
            collect.end_iteration(batch, {})
        assert store.verify() == []
    assert drawn[:3] == [[0], [0, 1], [0, 1, 2]]
    assert drawn[3] in ([0, 2, 3], [1, 2, 3])


@pytest.mark.parametrize("unit", ["trajectory", "group"])
def test_a_second_mix_replaces_fresh_draws_alone(store: Store, unit: Literal["trajectory", "group"]) -> None:
    """Members added by the first one stay: the second one replaces the last fresh draws, or a fresh group."""
    memory = replay.Memory(unit=unit)
    mix = replay.Mix(memory, count=1, replaces=True)
    state = mix.next(mix.initial_state(), IterationRecord.of(store.batch(0)))
    batch = grow(1, {"c": [0, 1], "d": [0, 1]})
    for number in range(2):
        draws = mix.mix(state, batch, key=number)
        assert draws is not None
        sources = np.asarray(batch.column("source", "draw"))
        assert (sources[draws.replaces] == 0).all()
        batch = scored(batch.with_stored_draws(store.trajectory_batch(np.unique(draws.trajectory_ids)), draws))
        assert batch.num_draws == 4
    assert (np.asarray(batch.column("source", "draw")) == 1).sum() == (2 if unit == "trajectory" else 4)
    ids = batch.column("trajectory_id", "draw").tolist()
    assert len(set(ids)) == 4
