"""Columns, weights and packs of a Batch against plain loops; concatenation, slicing and pickling."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from forests import TABLES, Path, frames, grow, same
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_world import SmallWorld

from agentrl_core import Batch, Collector, recipes
from agentrl_core.exceptions import AgentRLError, InvalidInputError

LEVELS = ("draw", "step", "token", "node_token")
seeds = st.integers(0, 2**32 - 1)


def levels(batch: Batch) -> dict[str, int]:
    """Return the number of rows of each level."""
    offsets = batch.offsets("token")
    return {
        "draw": batch.num_draws,
        "step": len(offsets) - 1,
        "token": int(offsets[-1]),
        "node_token": int(batch.offsets("node_token")[-1]),
    }


def computed(batch: Batch) -> Batch:
    """A column at every level, of every type."""
    rng = np.random.default_rng(0)
    rows = levels(batch)
    columns = {
        "draw": {"score": rng.random(rows["draw"]), "kept": rng.random(rows["draw"]) < 0.5},
        "step": {"advantage": rng.random(rows["step"], dtype=np.float32), "anchor": np.arange(rows["step"])},
        "token": {"weight": rng.random(rows["token"]), "rank": np.arange(rows["token"], dtype=np.uint32)},
        "node_token": {"reference_logprob": np.full(rows["node_token"], np.nan, np.float32)},
    }
    for level, fields in columns.items():
        batch = batch.with_columns(level, **fields)
    return batch.with_recipe("mine", {"clip": 0.2})


NAMES = {"score": "draw", "kept": "draw", "advantage": "step", "anchor": "step", "weight": "token", "rank": "token"}
NAMES["reference_logprob"] = "node_token"


def drawn_paths(paths: list[Path]) -> list[Path]:
    return [path for path in paths if path.status in ("finished", "truncated")]


def steps_of(paths: list[Path], draw: int) -> list[tuple[int, int]]:
    return [(begin, end) for begin, end, _ in drawn_paths(paths)[draw].steps]


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from(["token_mean", "sequence_mean", "constant"]), st.sampled_from(["each", "split", "owner"]))
def test_token_weights_equal_plain_loops(seed: int, denominator: str, shared: str) -> None:
    rng = np.random.default_rng(seed)
    batch, _ = grow(seed)
    draws = rng.permutation(batch.num_draws)[: rng.integers(0, batch.num_draws + 1)]
    valid = None if rng.random() < 0.3 else rng.random(batch.num_draws) < 0.7
    constant = 7.0 if denominator == "constant" else None
    counted = [draw for draw in sorted(draws.tolist()) if valid is None or valid[draw]]

    steps, tokens = batch.offsets("step"), batch.offsets("token")
    trainable, stored = batch.column("trainable", "token"), batch.column("node_token", "token")
    of_draw = np.repeat(np.repeat(np.arange(batch.num_draws), np.diff(steps)), np.diff(tokens))
    m = np.zeros(len(trainable))
    for token in np.flatnonzero(trainable):
        if of_draw[token] in counted:
            # A branch that forks inside an action shares the tokens before the fork, not the whole step.
            holding = [draw for draw in counted if stored[token] in stored[(of_draw == draw) & (trainable == 1)]]
            m[token] = {
                "each": 1.0,
                "split": 1.0 / len(holding),
                "owner": float(holding[0] == of_draw[token]),
            }[shared]
    sums = np.array([m[of_draw == draw].sum() for draw in range(batch.num_draws)])
    count = int((sums > 0).sum())
    with np.errstate(invalid="ignore"):
        expected = {
            "token_mean": lambda: m / m.sum(),
            "sequence_mean": lambda: m / sums[of_draw] / count,
            "constant": lambda: m / (7.0 * max(count, 1)),
        }[denominator]()
    expected = np.where(m > 0, expected, 0.0)

    weights = batch.token_weights(draws, denominator=denominator, constant=constant, shared=shared, valid=valid)
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=0)
    if count and denominator != "constant":
        assert weights.sum() == pytest.approx(1.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(0, 60))
def test_a_plan_holds_every_trainable_token_of_its_draws_once(seed: int, room: int) -> None:
    rng = np.random.default_rng(seed)
    batch, paths = grow(seed)
    draw_tokens = [np.array([token.token for token in path.tokens]) for path in drawn_paths(paths)]
    draws = rng.permutation(batch.num_draws)[: rng.integers(0, batch.num_draws + 1)]
    trainable, positions = batch.column("trainable", "token"), batch.column("position", "token")
    tokens, node_tokens = batch.column("token", "token"), batch.column("node_token", "token")
    bounds = batch.offsets("token")[batch.offsets("step")]
    trained = [np.flatnonzero(trainable[bounds[d] : bounds[d + 1]]) + bounds[d] for d in range(batch.num_draws)]
    lengths = {draw: int(positions[trained[draw]].max()) for draw in draws.tolist() if len(trained[draw])}
    max_tokens = max(lengths.values(), default=1) + room

    packs = batch.plan(draws, max_tokens)
    placed = sorted(draw for pack in packs for draw in pack.draw.tolist())
    assert placed == sorted(lengths), "each draw with something to train is in one pack"
    planned_tokens = np.concatenate([pack.token for pack in packs] or [np.zeros(0, np.int64)])
    expected = np.concatenate([trained[draw] for draw in placed] or [np.zeros(0, np.int64)])
    assert sorted(planned_tokens.tolist()) == sorted(expected.tolist())
    for pack in packs:
        starts = pack.cu_seqlens
        assert (starts.dtype, starts[0], starts[-1]) == (np.int32, 0, len(pack.input_ids))
        assert 0 < len(pack.input_ids) <= max_tokens
        assert pack.max_seqlen == np.diff(starts).max()
        assert len(starts) == len(pack.draw) + 1
        for place, draw in enumerate(pack.draw.tolist()):
            begin, end = starts[place], starts[place + 1]
            assert end - begin == lengths[draw], "a sequence ends before its last trainable token, which nothing reads"
            assert pack.input_ids[begin:end].tolist() == draw_tokens[draw][: end - begin].tolist()
            assert pack.position_ids[begin:end].tolist() == list(range(end - begin))
        assert pack.target.tolist() == tokens[pack.token].tolist()
        assert pack.node_token.tolist() == node_tokens[pack.token].tolist()
        sequence = np.searchsorted(starts, pack.source_row, side="right") - 1
        owner = pack.draw[sequence]
        assert ((bounds[owner] <= pack.token) & (pack.token < bounds[owner + 1])).all()
        # The row that predicts a token is that of the token before it on its path.
        assert (pack.position_ids[pack.source_row] + 1 == positions[pack.token]).all()
        before = [draw_tokens[draw][position - 1] for draw, position in zip(owner, positions[pack.token], strict=True)]
        assert pack.input_ids[pack.source_row].tolist() == before


def test_packs_are_filled() -> None:
    batch, _ = grow(1, groups=8)
    packs = batch.plan(np.arange(batch.num_draws), 100)
    sizes = sorted(len(pack.input_ids) for pack in packs)
    assert all(a + b > 100 for a, b in pairwise(sizes)), "no two packs would fit into one"


def test_a_sequence_that_does_not_fit_is_refused() -> None:
    batch, _ = grow(1)
    longest = max(pack.max_seqlen for pack in batch.plan(np.arange(batch.num_draws), 10_000))
    with pytest.raises(
        InvalidInputError, match=f"max_tokens is {longest - 1}, but draw .* has a sequence of {longest}"
    ):
        batch.plan(np.arange(batch.num_draws), longest - 1)


def test_facts_come_from_the_tables() -> None:
    batch, _ = grow(3)
    tables = frames(batch)
    of_draw = tables["draws"].join(
        tables["trajectories"].drop("group_id", "iteration"), on="trajectory_id", maintain_order="left"
    )
    for name in (
        "trajectory_id",
        "group_id",
        "agent",
        "iteration",
        "position",
        "source",
        "episode_id",
        "origin",
        "draw_id",
    ):
        draw_values = batch.column(name, "draw")
        assert draw_values.tolist() == of_draw[name].to_list()
        assert batch.column(name, "step").tolist() == np.repeat(draw_values, np.diff(batch.offsets("step"))).tolist()
    reward = batch.column("reward", "draw")
    assert reward.dtype == np.float32
    assert np.isnan(reward).tolist() == of_draw["reward"].is_null().to_list()
    of_step = of_draw.select("trajectory_id", "draw_id").join(
        tables["steps"], on="trajectory_id", maintain_order="left_right"
    )
    for name in ("step", "terminated", "truncated", "flags", "origin_trajectory_id", "trajectory_id"):
        assert batch.column(name, "step").tolist() == of_step[name].to_list()
    keys = batch.keys("state_key", "step")
    assert keys.dtype == np.uint32
    assert dict(zip(keys.tolist(), of_step["state_key"], strict=True)).items() == set(
        zip(keys.tolist(), of_step["state_key"], strict=True)
    )
    assert len(set(of_step["state_key"])) == len(set(keys.tolist())) == keys.max() + 1
    assert batch.keys("task_id", "draw").tolist() == [int(task[-1]) for task in of_draw["task_id"]]
    temperatures = {
        t["temperature"] for t in tables["nodes"]["sampling"] if t is not None and t["temperature"] is not None
    }
    inverse = batch.column("inverse_temperature", "token")
    assert set(inverse.tolist()) <= {float(np.float32(1) / np.float32(t)) for t in temperatures}


@pytest.mark.parametrize("seed", [0, 2])
def test_a_batch_has_the_columns_that_it_gives(seed: int) -> None:
    batch = computed(grow(seed)[0])
    tables = (batch.nodes, batch.steps, batch.trajectories, batch.draws)
    names = {*NAMES, *(name for table in tables for name in table.column_names)}
    names |= {
        "token",
        "behaviour_logprob",
        "entropy",
        "inverse_temperature",
        "node_token",
        "position",
        "no such column",
    }
    column_levels: set[tuple[str, str]] = set()
    for level in LEVELS:
        for name in names:
            try:
                batch.column(name, level)
            except AgentRLError:
                assert not batch.has(name, level), (name, level)
            else:
                assert batch.has(name, level), (name, level)
                column_levels.add((name, level))
    assert {("score", "token"), ("position", "token"), ("entropy", "node_token"), ("reward", "step")} <= column_levels
    assert ("score", "node_token") not in column_levels


def test_computed_columns_reach_every_finer_level() -> None:
    batch, _ = grow(2)
    steps, tokens = batch.offsets("step"), batch.offsets("token")
    score = np.random.default_rng(0).random(batch.num_draws)
    result = batch.with_columns("draw", score=score, entropy=score)
    assert result.column("score", "step").tolist() == np.repeat(score, np.diff(steps)).tolist()
    assert (
        result.column("score", "token").tolist()
        == np.repeat(np.repeat(score, np.diff(steps)), np.diff(tokens)).tolist()
    )
    assert result.column("entropy", "token").tolist() == result.column("score", "token").tolist(), "before the fact"
    assert not result.has("score", "node_token")
    of_step = np.random.default_rng(1).random(levels(batch)["step"]).astype(np.float32)
    result = result.with_columns("step", score=of_step)
    assert result.column("score", "token").tolist() == np.repeat(of_step, np.diff(tokens)).tolist()
    assert not result.has("score", "draw"), "a name stands for one column"
    values = np.random.default_rng(2).random(levels(batch)["node_token"])
    result = result.with_columns("node_token", value=values)
    assert result.column("value", "token").tolist() == values[batch.column("node_token", "token")].tolist()
    assert not batch.has("score", "draw"), "a Batch never changes"
    parity = (np.arange(levels(batch)["step"]) % 2) + 5
    assert result.with_columns("step", parity=parity).keys("parity", "step").tolist() == (parity - 5).tolist()


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_draws_are_selected_with_their_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = computed(grow(seed)[0])
    chosen = rng.permutation(batch.num_draws)[: rng.integers(0, batch.num_draws + 1)]
    selection = batch.select_draws(chosen)
    assert frames(selection)["draws"].equals(frames(batch)["draws"][chosen.tolist()], null_equal=True)
    assert all(
        frames(selection)[name].equals(frames(batch)[name], null_equal=True)
        for name in ("nodes", "steps", "trajectories")
    )
    bounds = {"step": batch.offsets("step"), "token": batch.offsets("token")[batch.offsets("step")]}
    for name, level in [*NAMES.items(), ("token", "token"), ("trajectory_id", "draw"), ("reward", "step")]:
        before, after = batch.column(name, level), selection.column(name, level)
        if level in bounds:
            rows = [row for draw in chosen for row in range(bounds[level][draw], bounds[level][draw + 1])]
            before = before[np.array(rows, np.int64)]
        elif level == "draw":
            before = before[chosen]
        np.testing.assert_array_equal(after, before)
    assert selection.num_groups == len(set(batch.column("group_id", "draw")[chosen].tolist()))


def test_parts_become_one() -> None:
    parts = [computed(grow(seed)[0]) for seed in (1, 2)]
    parts.insert(1, computed(Batch.concat([])))
    joined = Batch.concat(iter(parts))
    for level in LEVELS:
        assert levels(joined)[level] == sum(levels(part)[level] for part in parts)
    for name, level in [*NAMES.items(), ("token", "token"), ("reward", "draw"), ("reward", "step")]:
        expected = np.concatenate([part.column(name, level) for part in parts])
        np.testing.assert_array_equal(joined.column(name, level), expected)
    assert joined.num_groups == sum(part.num_groups for part in parts)
    tables = frames(joined)
    for name, key in {"nodes": "node_id", "trajectories": "trajectory_id", "draws": "draw_id"}.items():
        assert tables[name][key].to_list() == list(range(len(tables[name])))
    assert tables["draws"]["position"].to_list() == list(range(len(tables["draws"])))
    assert not Batch.concat([parts[0], grow(3)[0]]).has("score", "draw"), "kept only where every part has it"


def test_task_counts_of_independent_collectors_add_up_or_are_refused() -> None:
    def batches(seed: int) -> list[Batch]:
        world = SmallWorld()
        collect, collected = Collector(world, world, recipes.GRPO, seed=seed, task_pool=4), []
        for _ in range(2):
            collected.append(collect(tasks=2, group_size=2))
            collect.end_iteration(recipes.GRPO.credit(collected[-1]), {})
        return collected

    def check(parts: list[Batch]) -> None:
        """The last row of each task has the counts of all trajectories."""
        joined = Batch.concat(parts)
        rows = pl.DataFrame(joined.trajectories).group_by("task_id").agg(pl.len(), pl.col("success").cast(int).sum())
        latest = pl.DataFrame(joined.tasks).unique("task_id", keep="last")
        counts = latest.select(
            "task_id", pl.col("attempts"), pl.col("successes"), "difficulty", "alpha", "beta", "uses"
        )
        assert len(counts) == len(rows) > 2
        for task, attempts, successes, difficulty, alpha, beta, uses in counts.rows():
            [(_, count, paid)] = rows.filter(pl.col("task_id") == task).rows()
            assert (attempts, successes, alpha, beta) == (count, paid, paid, count - paid)
            assert difficulty == pytest.approx(1 - paid / count)
            assert uses == sum(task in pl.DataFrame(part.tasks)["task_id"].to_list() for part in parts)

    runs = [batches(seed) for seed in (0, 0, 1, 2)]
    check([first for first, _ in runs])
    check(runs[0])  # one after the other, of one collector
    assert len({row for first, _ in runs for row in pl.DataFrame(first.tasks)["task_id"]}) < 8, "some are met twice"
    with pytest.raises(InvalidInputError, match="statistics of iteration 1: they come from independent collectors"):
        Batch.concat([second for _, second in runs])


def values(batch: Batch) -> dict[str, NDArray]:
    return {name: batch.column(name, level) for name, level in NAMES.items()}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("empty", [False, True])
def test_a_batch_pickles_with_its_columns(protocol: int, empty: bool) -> None:
    batch = computed(Batch.concat([]) if empty else grow(4)[0])
    again = pickle.loads(pickle.dumps(batch, protocol))
    assert same(batch, again)
    for name, column in values(batch).items():
        actual = again.column(name, NAMES[name])
        assert actual.dtype == column.dtype
        np.testing.assert_array_equal(actual, column)
    for name in ("draw_columns", "step_columns", "node_columns"):
        assert pl.DataFrame(getattr(again, name)).equals(pl.DataFrame(getattr(batch, name)), null_equal=True)
    assert pickle.dumps(again, protocol) == pickle.dumps(batch, protocol), "the note of their source included"
    assert same(copy.deepcopy(batch), batch)


def test_a_table_pickles() -> None:
    batch = computed(grow(4)[0])
    for name in (*TABLES, "draw_columns", "step_columns", "node_columns"):
        table = getattr(batch, name)
        again = pickle.loads(pickle.dumps(table))
        assert pl.DataFrame(again).equals(pl.DataFrame(table), null_equal=True)
        assert (again.column_names, again.num_rows, len(again)) == (table.column_names, table.num_rows, len(table))


def test_a_batch_of_nothing_answers_everything() -> None:
    empty = Batch.concat([])
    assert repr(empty) == "Batch(0 draws in 0 groups, 0 trajectories, 0 nodes)"
    assert len(empty.plan([], 10)) == 0
    assert len(empty.token_weights([])) == 0
    assert empty.sharing_ratio == 0.0
    for name, level in [("reward", "draw"), ("reward", "step"), ("token", "token"), ("token", "node_token")]:
        assert len(empty.column(name, level)) == 0
    assert empty.select_draws([]).num_draws == 0
    assert computed(empty).column("weight", "token").dtype == np.float64
    undrawn = grow(1)[0].select_draws([])
    assert (undrawn.num_draws, undrawn.num_groups) == (0, 0)
    assert len(undrawn.nodes) > 0
    assert list(undrawn.plan([], 1)) == []


def test_columns_belong_to_the_caller() -> None:
    batch, _ = grow(1)
    for name, level in [("reward", "draw"), ("token", "token"), ("node_token", "token")]:
        column = batch.column(name, level)
        column[:] = 0
        assert batch.column(name, level).any()
    weights = np.ones(batch.num_draws)
    result = batch.with_columns("draw", w=weights)
    weights[:] = 5
    assert result.column("w", "draw").tolist() == [1.0] * batch.num_draws


def test_sharing_is_counted() -> None:
    batch, paths = grow(5, members=4, turns=6)
    stored = levels(batch)["node_token"]
    assert batch.sharing_ratio == sum(len(path.tokens) for path in drawn_paths(paths)) / stored
    assert stored < sum(len(path.tokens) for path in paths)
