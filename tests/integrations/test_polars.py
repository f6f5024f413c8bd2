"""Compare the Polars namespace with plain lists, and with the methods of a Batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from forests import grow
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from agentrl_core import Batch, Store, advantage, scan
from agentrl_core.cli import main
from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import CorruptError, InvalidInputError, NotFoundError, StoreError
from agentrl_core.integrations.polars import example
from agentrl_core.integrations.polars.tables import Tables


def collected(batch_or_run: Any, name: str = "trajectories") -> Any:
    return getattr(scan(batch_or_run), name).collect()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_paths_are_the_tokens_that_were_appended(seed: int) -> None:
    batch, paths = grow(seed, groups=3, turns=5)
    path_rows = collected(batch).agentrl.paths(scan(batch))
    assert path_rows["trajectory_id"].to_list() == list(range(len(paths)))
    for path, row in zip(paths, path_rows.rows(named=True), strict=True):
        assert row["tokens"] == [token.token for token in path.tokens]
        assert row["kinds"] == [token.kind for token in path.tokens]
        assert row["trainable"] == [int(token.trainable) for token in path.tokens]
        expected = [None if token.logprob is None else float(np.float32(token.logprob)) for token in path.tokens]
        assert row["logprobs"] == expected


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_steps_are_the_actions_that_were_closed(seed: int) -> None:
    batch, paths = grow(seed, groups=3, turns=5)
    steps_by_trajectory = collected(batch).agentrl.steps(scan(batch)).partition_by("trajectory_id", as_dict=True)
    for number, path in enumerate(paths):
        rows = steps_by_trajectory[(number,)].rows(named=True) if (number,) in steps_by_trajectory else []
        assert [row["step"] for row in rows] == list(range(len(path.steps)))
        for row, (begin, end, reward) in zip(rows, path.steps, strict=True):
            assert row["start"] == begin
            assert row["tokens"] == [token.token for token in path.tokens[begin:end]]
            assert row["step_reward"] == (None if reward is None else float(np.float32(reward)))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_nodes_of_a_path_make_the_path(seed: int) -> None:
    batch, _ = grow(seed, groups=3, turns=5)
    run = scan(batch)
    nodes = collected(batch).agentrl.nodes(run)
    path_nodes = nodes.with_columns(pl.col("tokens").list.head("end"))
    joined = path_nodes.group_by("trajectory_id", maintain_order=True).agg(pl.col("tokens").list.explode())
    assert joined["tokens"].to_list() == collected(batch).agentrl.paths(run)["tokens"].to_list()
    assert (nodes["end"] <= nodes["tokens"].list.len()).all()


def computed(seed: int) -> Batch:
    batch, _ = grow(seed, groups=3, turns=5)
    rng = np.random.default_rng(seed)
    batch = batch.with_columns("draw", score=rng.random(batch.num_draws, np.float32))
    batch = batch.with_columns("step", bonus=rng.random(len(batch.offsets("token")) - 1))
    batch = batch.with_columns("token", weight=rng.random(batch.offsets("token")[-1]))
    return batch.with_columns("node_token", value=rng.random(batch.offsets("node_token")[-1]))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_tokens_are_the_token_level_of_the_batch(seed: int) -> None:
    batch = computed(seed)
    token_rows = collected(batch, "draws").agentrl.tokens(scan(batch))
    names = {"token": "token", "logprob": "behaviour_logprob", "trainable": "trainable", "token_position": "position"}
    for mine, theirs in {**names, **{name: name for name in ("score", "bonus", "weight", "value")}}.items():
        column = token_rows[mine].fill_null(np.nan) if token_rows[mine].dtype.is_float() else token_rows[mine]
        np.testing.assert_array_equal(column.to_numpy(), batch.column(theirs, "token"), err_msg=mine)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_sequence_has_every_trained_token_of_its_draw(seed: int) -> None:
    batch = computed(seed)
    run = scan(batch)
    draws = collected(batch, "draws")
    rows = draws.agentrl.sequences(run)
    tokens = draws.agentrl.tokens(run)
    assert rows["draw_id"].to_list() == tokens["draw_id"].unique(maintain_order=True).to_list()
    assert rows["sequence"].unique().to_list() == [0], "these contexts only grow"
    lists = ("tokens", "trainable", "kinds", "logprobs", "bonus", "weight", "value")
    exploded = rows.select("draw_id", "score", *lists).with_columns(
        token_position=pl.int_ranges(0, pl.col("tokens").list.len(), dtype=pl.Int32)
    )
    exploded = exploded.explode("token_position", *lists)
    inside = tokens.select("draw_id", "token_position", "bonus", "weight", "score", token_trainable="trainable")
    both = exploded.join(inside, on=["draw_id", "token_position"], how="left", suffix="_of_token")
    for name in ("bonus", "weight", "score"):
        expected = both[f"{name}_of_token"]
        actual = both[name] if name != "score" else both.select(pl.when(expected.is_not_null()).then("score"))["score"]
        assert actual.equals(expected, null_equal=True), name
    assert both["trainable"].to_list() == both["token_trainable"].fill_null(0).to_list()
    assert exploded["trainable"].sum() == tokens["trainable"].sum()
    paths = draws.select("trajectory_id").agentrl.paths(run)["tokens"].to_list()
    for tokens_of_draw, path in zip(rows["tokens"].to_list(), paths, strict=True):
        assert path[: len(tokens_of_draw)] == tokens_of_draw


def rewritten() -> Tables:
    """Return tables with a rewritten context.

    Prompt 1 2, action 3, observation 4, action 5 6; then the context begins anew: 1 2, injected 7, action 8.

    A second trajectory leaves the action 5 6 after its first token with 9, and was pruned from the gradient.
    """
    empty = scan(Batch.concat([]))

    def table(name: str, rows: list[dict[str, Any]]) -> pl.LazyFrame:
        schema = getattr(empty, name).collect_schema()
        return pl.DataFrame(rows, schema=schema).lazy()

    def node(
        node_id: int, parent: int | None, end: int | None, start: int, kind: int, tokens: list[int]
    ) -> dict[str, Any]:
        return {
            "node_id": node_id,
            "parent_id": parent,
            "parent_end": end,
            "group_id": 0,
            "start": start,
            "kind": CODES["kind"][kind],
            "tokens": tokens,
            "logprobs": [-0.5] * len(tokens) if kind == 1 else None,
            "entropies": None,
            "trainable": None,
        }

    nodes = [
        node(10, None, None, 0, 0, [1, 2]),
        node(11, 10, None, 2, 1, [3]),
        node(12, 11, None, 3, 2, [4]),
        node(13, 12, None, 4, 1, [5, 6]),
        node(14, 10, None, 2, 3, [7]),
        node(15, 14, None, 3, 1, [8]),
        node(16, 13, 1, 5, 1, [9]),
    ]
    steps = [(0, 0, 11, 11, 0), (0, 1, 13, 13, 0), (0, 2, 15, 15, 0), (1, 0, 11, 11, 0), (1, 1, 13, 16, 1 << 31)]
    return Tables(
        nodes=table("nodes", nodes),
        steps=table(
            "steps",
            [
                {
                    "trajectory_id": t,
                    "step": s,
                    "first_node_id": f,
                    "node_id": n,
                    "reward": None,
                    "rewards": None,
                    "flags": x,
                }
                for t, s, f, n, x in steps
            ],
        ),
        trajectories=table(
            "trajectories",
            [{"trajectory_id": t, "group_id": 0, "leaf_node_id": leaf} for t, leaf in ((0, 15), (1, 16))],
        ),
        draws=table("draws", [{"draw_id": d, "trajectory_id": t} for d, t in ((0, 0), (1, 1))]),
        tasks=empty.tasks,
        decisions=empty.decisions,
        draw_columns=empty.draw_columns,
        step_columns=pl.DataFrame(
            {
                "draw_id": [0, 0, 0, 1, 1],
                "step": pl.Series([0, 1, 2, 0, 1], dtype=pl.Int32),
                "advantage": [1.0, 2.0, 3.0, 4.0, 5.0],
            }
        ).lazy(),
        node_columns=empty.node_columns,
        metrics=empty.metrics,
    )


def test_a_rewritten_context_is_a_separate_sequence() -> None:
    run = rewritten()
    rows = run.draws.agentrl.sequences(run).collect()
    assert rows.select("draw_id", "sequence", "tokens", "trainable", "advantage").rows() == [
        (0, 0, [1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 1], [None, None, 1.0, None, 2.0, 2.0]),
        (0, 1, [1, 2, 7, 8], [0, 0, 0, 1], [None, None, None, 3.0]),
        (1, 0, [1, 2, 3, 4, 5, 9], [0, 0, 1, 0, 0, 0], [None, None, 4.0, None, 5.0, 5.0]),
    ]
    paths = run.trajectories.agentrl.paths(run).collect()
    assert paths["tokens"].to_list() == [[1, 2, 7, 8], [1, 2, 3, 4, 5, 9]]
    steps = run.trajectories.agentrl.steps(run).collect()
    assert steps.select("start", "tokens").rows() == [(2, [3]), (4, [5, 6]), (3, [8]), (2, [3]), (4, [5, 9])]


def test_damaged_trees_are_named() -> None:
    run = rewritten()
    lost = Tables(**{**vars(run), "nodes": run.nodes.filter(pl.col("node_id") != 12)})
    with pytest.raises(NotFoundError, match="node 12 of a path is not in the table nodes"):
        run.trajectories.collect().agentrl.paths(lost)
    circle = run.nodes.with_columns(parent_id=pl.when(pl.col("node_id") == 10).then(12).otherwise("parent_id"))
    with pytest.raises(CorruptError, match=r"node \d+ is its own ancestor; run agentrl verify on the run"):
        run.trajectories.collect().agentrl.paths(Tables(**{**vars(run), "nodes": circle}))
    stray = run.steps.with_columns(first_node_id=pl.lit(15))
    with pytest.raises(CorruptError, match="node 15, where a turn begins, is not an ancestor of node 11"):
        run.trajectories.collect().agentrl.steps(Tables(**{**vars(run), "steps": stray}))


METHODS = ("trajectories", "nodes", "paths", "steps", "computed", "tokens", "sequences")


@pytest.mark.parametrize("method", METHODS)
def test_lazy_frames_give_the_same(recorded: Path, method: str) -> None:
    run = scan(recorded)
    chosen = run.draws.filter(pl.col("iteration") != 1, pl.col("draw_id") % 3 > 0).sort("draw_id", descending=True)
    lazy = getattr(chosen.agentrl, method)(run)
    eager = getattr(chosen.collect().agentrl, method)(run)
    assert isinstance(lazy, pl.LazyFrame)
    assert lazy.collect_schema() == eager.schema
    assert_frame_equal(lazy.collect(), eager)
    assert eager["draw_id"].unique(maintain_order=True).to_list() == chosen.collect()["draw_id"].to_list()
    assert lazy.select("draw_id").collect().equals(eager.select("draw_id"))
    nothing = getattr(chosen.filter(draw_id=-1).agentrl, method)(run).collect()
    assert (len(nothing), nothing.schema) == (0, eager.schema)


@pytest.mark.parametrize("method", METHODS)
def test_selecting_columns_or_rows_does_not_change_their_values(recorded: Path, method: str) -> None:
    run = scan(recorded)
    lazy = getattr(run.draws.agentrl, method)(run)
    full = lazy.collect()
    assert len(full.columns) > len(run.draws.collect_schema())
    for name in full.columns:
        assert_frame_equal(lazy.select(name).collect(), full.select(name))
    # A filter on stored columns, on added columns, and on both.
    first = full.filter(pl.col("iteration") == 1)
    added = next(name for name in reversed(full.columns) if first[name].null_count() < len(first))
    assert added not in run.draws.collect_schema()
    conditions = [pl.col("draw_id") % 2 == 1, pl.col(added).is_not_null() & (pl.col("iteration") == 1)]
    for condition in [*conditions, conditions[0] | conditions[1]]:
        filtered = full.filter(condition)
        assert 0 < len(filtered) < len(full)
        assert_frame_equal(lazy.filter(condition).collect(), filtered)
        assert lazy.filter(condition).select(pl.len()).collect().item() == len(filtered)
    assert_frame_equal(lazy.head(3).collect(), full.head(3))


@pytest.mark.parametrize("method", METHODS)
def test_a_row_twice_is_two_rows(recorded: Path, method: str) -> None:
    run = scan(recorded)
    once = run.draws.head(3).collect().with_columns(copy=pl.lit(0))
    twice = pl.concat([once, once.with_columns(copy=pl.lit(1))])
    result = getattr(twice.agentrl, method)(run)
    expected = getattr(once.agentrl, method)(run)
    for copy in (0, 1):
        assert_frame_equal(result.filter(copy=copy).drop("copy"), expected.drop("copy"))


def test_each_iteration_has_the_columns_of_its_recipe(recorded: Path) -> None:
    run = scan(recorded)
    with Store.open(recorded, read_only=True) as store:
        for iteration in range(3):
            batch = store.batch(iteration)
            tokens = run.draws.filter(iteration=iteration).agentrl.tokens(run).collect()
            for name in ("advantage", "score", "value"):
                np.testing.assert_array_equal(tokens[name].fill_null(np.nan).to_numpy(), batch.column(name, "token"))


def test_facts_of_trajectories_and_tasks(recorded: Path) -> None:
    run = scan(recorded)
    trajectories = run.draws.agentrl.trajectories(run).collect()
    assert len(trajectories) == len(run.draws.collect()) > 0
    latest = {row["task_id"]: row["attempts"] for row in run.tasks.collect().rows(named=True)}
    assert len(run.tasks.collect()) > len(latest), "a row for each change"
    now = run.latest_tasks.collect()
    assert dict(zip(now["task_id"], now["attempts"], strict=True)) == latest
    assert len(now) == len(latest)
    assert trajectories["task_attempts"].to_list() == [latest[task] for task in trajectories["task_id"]]
    rewards = dict(run.trajectories.select("trajectory_id", "reward").collect().rows())
    assert trajectories["reward"].to_list() == [rewards[trajectory] for trajectory in trajectories["trajectory_id"]]
    assert (trajectories["trajectory_group_id"] == trajectories["group_id"]).all()


@pytest.mark.parametrize("kind", [pl.Float32, pl.Float64, pl.Int8, pl.Int64])
def test_group_relative_is_the_kernel(kind: Any) -> None:
    rng = np.random.default_rng(0)
    rewards = pl.Series("reward", rng.integers(0, 5, 200)).cast(kind)
    frame = pl.DataFrame({"reward": rewards, "group_id": rng.integers(0, 9, 200)})
    scores = rewards.to_numpy() if rewards.dtype.is_float() else rewards.to_numpy().astype(np.float64)
    for options in ({}, {"scale": "none"}, {"ddof": 0, "eps": 0.5}):
        expected = advantage.group_relative(scores, frame["group_id"], **options)
        for result in (
            frame.agentrl.group_relative("reward", **options),
            frame.lazy().agentrl.group_relative("reward", name="advantage", **options).collect(),
            frame.with_columns(advantage=pl.col("reward").agentrl.group_relative(pl.col("group_id"), **options)),
        ):
            np.testing.assert_array_equal(result["advantage"].to_numpy(), expected, strict=True)
    schema = frame.lazy().agentrl.group_relative("reward").collect_schema()
    assert schema["advantage"] == (pl.Float32 if kind == pl.Float32 else pl.Float64)


def test_unknown_scores_neither_vote_nor_get_a_value() -> None:
    rewards = [1.0, None, 3.0, float("nan"), float("inf"), 7.0]
    frame = pl.DataFrame({"reward": rewards, "group_id": ["a", "a", "a", "a", "a", "b"]})
    advantages = frame.agentrl.group_relative("reward", scale="none", singleton="raw")["advantage"].to_list()
    assert advantages == [-1.0, None, 1.0, None, None, 7.0]


def test_words_are_those_of_the_files() -> None:
    batch = example()
    for name in ("nodes", "trajectories", "draws", "steps"):
        for field in pa.schema(getattr(batch, name)):
            if field.metadata and b"codes" in field.metadata:
                codes = field.metadata[b"codes"].decode().split(",")
                assert [f"{code}={word}" for code, word in enumerate(CODES[field.name])] == codes
    run = scan(batch)
    assert run.trajectories.agentrl.words().collect()["status"].to_list() == ["finished"] * 2
    odd = pl.DataFrame({"kind": pl.Series([1, 77], dtype=pl.UInt8), "other": [1, 2]})
    assert odd.agentrl.words().rows() == [("action", 1), (None, 2)]


def test_a_scan_is_a_snapshot_of_the_committed_rows(tmp_path: Path) -> None:
    (batch, _), (again, _) = grow(0), grow(0, iteration=1)
    with Store.open(tmp_path) as store:
        empty = scan(tmp_path)
        assert all(getattr(empty, name).collect().is_empty() for name in vars(empty))
        store.append(batch, iteration=0)
        store.flush()
        first = scan(tmp_path)
        (tmp_path / "nodes" / "00000009.arrow").write_bytes(b"not committed")
        assert len(scan(tmp_path).nodes.collect()) == len(batch.nodes)
        store.append(store.rebase(again), iteration=1)
        store.flush()
        assert len(first.draws.collect()) == batch.num_draws
        assert len(scan(store).draws.collect()) == len(scan(tmp_path).draws.collect()) == 2 * batch.num_draws
        assert scan(first) is first
    with pytest.raises(NotFoundError, match="is not a store"):
        scan(tmp_path / "nothing")


def committed(store: Store, iterations: range, columns: str = "advantage") -> None:
    for iteration in iterations:
        batch = store.rebase(grow(iteration, iteration=iteration)[0])
        store.append(batch, iteration=iteration)
        store.flush()
        store.close_iteration(batch.with_columns("draw", **{columns: np.arange(float(batch.num_draws))}), {})


def test_a_scan_does_not_change_when_files_are_merged(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        committed(store, range(3))
        run = scan(tmp_path)
        expected = {name: frame.collect() for name, frame in vars(run).items()}
        assert len(expected["nodes"]) == len(store.nodes) > 0
        files = {path for name in expected for path, *_ in store.files(name)}
        committed(store, range(3, 14), "other")
        store.compact()
        assert not any(path.exists() for path in files), "all were merged away"
        for name, rows in expected.items():
            assert_frame_equal(getattr(run, name).collect(), rows)
        ids = expected["nodes"]["node_id"]
        assert run.nodes.select("node_id").head(3).collect()["node_id"].to_list() == ids[:3].to_list()
        assert run.nodes.filter(pl.col("node_id") == ids[-1]).select("kind").collect().height == 1
        assert run.nodes.select(pl.len()).collect().item() == len(ids)
        # Dropping rows renumbers those that are carried over.
        later = scan(store)
        store.drop_before(12, rewrite=True)
        for stale in (run, later):
            with pytest.raises((NotFoundError, pl.exceptions.ComputeError), match=r"dropped since .* call refresh"):
                stale.nodes.collect()
        old_scan = scan(tmp_path)
        assert set(old_scan.draws.collect()["iteration"]) == {12, 13}


def test_a_file_is_found_under_the_name_that_it_has_until_its_commit_is_over(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        committed(store, range(2))
    run = scan(tmp_path)
    rows = run.nodes.collect()
    assert len(rows) > 0
    files = list((tmp_path / "nodes").iterdir())
    assert files
    for file in files:
        file.rename(file.with_name(file.name.replace("-", ".").replace(".arrow", ".tmp")))
    assert_frame_equal(run.nodes.collect(), rows)
    assert_frame_equal(scan(tmp_path).nodes.collect(), rows)
    for file in (tmp_path / "nodes").iterdir():
        file.unlink()
    with pytest.raises((StoreError, pl.exceptions.ComputeError), match=rf"nodes.{min(files).stem}"):
        run.nodes.collect()


def test_a_damaged_file_is_not_taken_for_rows(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        committed(store, range(2))
    file = min((tmp_path / "nodes").iterdir())
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    with pytest.raises((CorruptError, pl.exceptions.ComputeError), match="checksum"):
        scan(tmp_path).nodes.collect()


@pytest.mark.parametrize("name", ["exp[12]", "run?", "run*", "*[a]?", "[", "a{b,c}"])
def test_a_folder_named_like_a_pattern_is_that_folder(tmp_path: Path, name: str) -> None:
    for other in ("exp1", "run1", "xa1", "ab"):
        with Store.open(tmp_path / other) as store:
            committed(store, range(1))
    with Store.open(tmp_path / name) as store:
        committed(store, range(2))
    run = scan(tmp_path / name)
    assert set(run.draws.collect()["iteration"]) == {0, 1}
    assert len(run.draw_columns.collect()) == len(run.draws.collect())
    target = tmp_path / "draws.jsonl"
    for command in (["ls"], ["stats"], ["show", "0"], ["export", "--table", "draws", "--to", str(target)]):
        assert main([command[0], str(tmp_path / name), *command[1:]]) == 0
    assert {json.loads(line)["iteration"] for line in target.read_text().splitlines()} == {0, 1}


def test_wrong_frames_are_refused(recorded: Path) -> None:
    run = scan(recorded)
    draws = run.draws.collect()
    with pytest.raises(
        InvalidInputError, match=r"no column trajectory_id; keep this column \(the frame has task_id, domain"
    ):
        run.tasks.agentrl.paths(run)
    with pytest.raises(InvalidInputError, match="the frame has no column draw_id or node_id; keep"):
        run.trajectories.agentrl.computed(run)
    with pytest.raises(InvalidInputError, match="the frame has no column draw_id; keep"):
        run.trajectories.agentrl.sequences(run)
    for method, name in (("paths", "tokens"), ("steps", "start"), ("tokens", "token"), ("computed", "advantage")):
        with pytest.raises(InvalidInputError, match=f"the frame already has a column {name}"):
            getattr(draws.with_columns(pl.lit(0).alias(name)).agentrl, method)(run)
    with pytest.raises(NotFoundError, match="trajectory 99999 of the frame is not in source"):
        draws.with_columns(trajectory_id=pl.lit(99_999)).agentrl.paths(run)


def test_without_polars_the_message_names_the_extra() -> None:
    code = "import sys; sys.modules['polars'] = None; import agentrl_core.integrations.polars"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        "MissingDependencyError: agentrl_core.polars needs Polars: pip install 'agentrl-core[polars]'"
        in completed.stderr
    )


def test_a_run_has_names_where_its_files_have_codes(recorded) -> None:
    run = scan(recorded)
    assert set(run.nodes.collect()["kind"]) == {"prompt", "action", "observation"}
    kinds = run.nodes.collect_schema()["kind"], run.trajectories.collect_schema()["status"]
    assert [kind.categories.to_list() for kind in kinds] == [list(CODES["kind"]), list(CODES["status"])]
    for table, names in (("trajectories", ("success",)), ("draws", ("votes", "trained")), ("steps", ("terminated",))):
        schema = getattr(run, table).collect_schema()
        assert {schema[name] for name in names} == {pl.Boolean}
    with Store.open(recorded, read_only=True) as store:
        codes = pl.DataFrame(store.trajectories)
    named = run.trajectories.collect()
    assert named["status"].to_physical().to_list() == codes["status"].to_list()
    assert named["success"].cast(pl.UInt8).to_list() == codes["success"].to_list()
    assert set(run.decisions.collect()["operation"]) >= {"start", "fork"}
