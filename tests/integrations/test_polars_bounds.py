"""Filters of a scan read only blocks that can have the rows, and return the same rows as a filter on all blocks."""

from __future__ import annotations

import shutil
from functools import reduce
from operator import and_, or_
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from stores import trained

from agentrl_core import Store, scan
from agentrl_core.integrations.polars import _stored_table
from agentrl_core.integrations.polars._predicate_bounds import ColumnTexts, bounds_check

ITERATIONS = 24

numbers = st.integers(-5, 12)
terms = st.one_of(
    st.tuples(st.sampled_from(["a", "b"]), numbers).map(lambda given: pl.col(given[0]) == given[1]),
    st.tuples(st.sampled_from(["a", "b", "c"]), numbers).map(lambda given: pl.col(given[0]) > given[1]),
    st.tuples(st.sampled_from(["a", "b"]), st.lists(numbers, max_size=3)).map(
        lambda given: pl.col(given[0]).is_in(given[1])
    ),
    st.tuples(st.sampled_from(["a", "b"]), numbers).map(lambda given: pl.col(given[0]) % 4 == given[1] % 4),
    st.sampled_from([pl.col("c").is_null(), pl.col("c").is_not_null(), pl.col("a") < pl.col("b"), pl.lit(value=True)]),
)
predicates = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda given: reduce(and_, given)),
        st.lists(inner, min_size=2, max_size=3).map(lambda given: reduce(or_, given)),
        inner.map(lambda predicate: ~predicate),
    ),
    max_leaves=5,
)
rows = st.lists(st.tuples(numbers, numbers, st.none() | numbers), min_size=1, max_size=6)


@given(st.lists(rows, min_size=1, max_size=4), predicates)
def test_bounds_checks_of_blocks_agree_with_their_rows(
    blocks: list[list[tuple[int, int, int | None]]], wanted: pl.Expr
) -> None:
    schema = {"a": pl.Int64, "b": pl.Int64, "c": pl.Int64}
    frames = [pl.DataFrame(values, schema=schema, orient="row") for values in blocks]
    least = {name: np.array([min(frame[name].to_list()) for frame in frames]) for name in ("a", "b")}
    greatest = {name: np.array([max(frame[name].to_list()) for frame in frames]) for name in ("a", "b")}
    check = bounds_check(wanted)
    of_all = check({name: (least[name], greatest[name]) for name in ("a", "b")})
    can, every = (np.broadcast_to(one, len(frames)) for one in of_all)
    for place, frame in enumerate(frames):
        passing = frame.filter(wanted).height
        assert can[place] or passing == 0
        assert not (can[place] and every[place]) or passing == frame.height
        bounds = {name: (int(least[name][place]), int(greatest[name][place])) for name in ("a", "b")}
        assert check(bounds) == (can[place], every[place]), "one block gets the same result alone and among others"


@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), min_size=1, max_size=5),
    st.sampled_from(
        [
            pl.col("task") == "b",
            pl.col("task").is_in(["a", "d", "x"]),
            pl.col("task").str.contains("[bc]"),
            pl.col("task") != "c",
            (pl.col("task") > "a") & (pl.col("task") < "d"),
            pl.col("task").is_null(),
            (pl.col("task") == "b") & (pl.col("other") == 0),
        ]
    ),
)
def test_text_checks_of_blocks_agree_with_their_rows(blocks: list[list[str]], wanted: pl.Expr) -> None:
    texts = sorted({text for block in blocks for text in block})
    pairs = [(place, texts.index(text)) for place, block in enumerate(blocks) for text in sorted(set(block))]
    block, text = np.array(pairs, np.int64).T
    can, every = (
        np.broadcast_to(one, len(blocks)) for one in bounds_check(wanted)({"task": ColumnTexts(texts, block, text)})
    )
    of_other = "other" in wanted.meta.root_names()
    for place, rows_of_block in enumerate(blocks):
        frame = pl.DataFrame({"task": rows_of_block}).with_columns(other=0)
        passing = frame.filter(wanted).height
        assert can[place] == (passing > 0), "what texts say is exact"
        assert every[place] == (passing == frame.height and not of_other)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (pl.col("a") == 4, False),
        (pl.col("a") == 3, None),
        (pl.col("a") < 4, True),
        ((pl.col("a") > 0) & (pl.col("b") >= 5), True),
        ((pl.col("a") > 0) & (pl.col("c") >= 5), None),
        ((pl.col("a") > 1) & (pl.col("b") > 9), False),  # b is 5 to 9
        ((pl.col("a") > 1) | (pl.col("b") > 9), None),
        ((pl.col("c") > 0) & (pl.col("a") % 5 == 4), False),  # none of 1, 2, 3
        (pl.col("c").is_null() & (pl.col("b") == 7), None),
        (pl.col("c") == 4, None),  # c has no bounds
        (pl.col("a").is_in([0, 8]) & (pl.col("b") == 5), False),
        (pl.col("a").is_in([3, 1, 2, 8]), True),
        (pl.col("a").is_in([3, 1, 1, 8, None]), None),
        (pl.col("a").is_in([]), False),
        (pl.col("a").is_in([4]) | pl.col("a").is_in([1, 2, 3]), True),
        (~pl.col("a").is_in([1, 2, 3]), False),
        (pl.col("d").is_in([-1, (1 << 50) + 1]), False),  # far apart, but the filter has few values
        (pl.col("d").is_in(pl.Series([1 << 40], dtype=pl.UInt64).implode()), None),
        (pl.col("a").cast(pl.UInt8) - 2 > 200, None),  # 1 - 2 is 255
        (pl.col("d") > 1 << 40, None),  # too far apart to try all
        (pl.lit(value=True), None),
    ],
)
def test_bounds_of_filter_columns(wanted: pl.Expr, expected: bool | None) -> None:
    can, every = bounds_check(wanted)({"a": (1, 3), "b": (5, 9), "d": (0, 1 << 50)})
    assert (bool(every) or None if can else False) is expected


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("run"), merged=False)


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("merged"), merged=True)


def written(folder: Path, *, merged: bool) -> Path:
    """Return a run of some iterations, in files of their own or in one per table."""
    with Store.open(folder, sync="never") as store:
        for iteration in range(ITERATIONS):
            trained(store, iteration)
        if merged:
            store.compact()
    return folder


Reads = list[tuple[str, int, list[str]]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Return the table, the number of rows and the columns of each read."""
    reads: Reads = []
    read = _stored_table._Table.read

    def counting(self: _stored_table._Table, rows: _stored_table._RowRanges, schema: pl.Schema) -> pl.DataFrame:
        reads.append((self.name, int((rows.ends - rows.firsts).sum()), list(schema)))
        return read(self, rows, schema)

    monkeypatch.setattr(_stored_table._Table, "read", counting)
    return reads


def counted(read: Reads, name: str) -> int:
    """Return the number of rows of a table that were read."""
    return sum(rows for table, rows, _ in read if table == name)


FILTERS = [
    ("trajectories", pl.col("iteration") == 3),
    ("trajectories", pl.col("iteration").is_between(20, 22) & (pl.col("reward") > 0)),
    ("trajectories", pl.col("group_id") >= 60),
    ("trajectories", pl.col("task_id").str.ends_with("1") & (pl.col("iteration") > 20)),
    ("draws", pl.col("iteration") == ITERATIONS - 1),
    ("draws", pl.col("trajectory_id").is_between(5, 20)),
    ("nodes", pl.col("group_id") == 5),
    ("nodes", (pl.col("group_id") < 9) & (pl.col("kind") == "action")),
    ("steps", pl.col("trajectory_id") == 7),
    ("draw_columns", pl.col("draw_id") < 4),
]


@pytest.mark.parametrize("folder", ["recorded", "merged"])
@pytest.mark.parametrize(("table", "wanted"), FILTERS)
def test_a_filter_reads_the_blocks_that_can_have_its_rows(
    request: pytest.FixtureRequest, folder: str, read: Reads, table: str, wanted: pl.Expr
) -> None:
    frame = getattr(scan(request.getfixturevalue(folder)), table)
    all_rows = frame.collect()
    expected = all_rows.filter(wanted)
    assert expected.height > 0
    read.clear()
    assert_frame_equal(frame.filter(wanted).collect(), expected)
    assert expected.height <= counted(read, table) < all_rows.height


def test_a_filter_on_lists_reads_all_rows(merged: Path, read: Reads) -> None:
    nodes = scan(merged).nodes
    condition = pl.col("tokens").list.len() > 3
    all_rows = nodes.collect()
    read.clear()
    assert_frame_equal(nodes.filter(condition).collect(), all_rows.filter(condition))
    assert counted(read, "nodes") == all_rows.height


def test_metrics_of_an_iteration_are_found(merged: Path) -> None:
    metrics = scan(merged).metrics
    result = metrics.filter(pl.col("iteration") == 2).collect()
    assert_frame_equal(result, metrics.collect().filter(pl.col("iteration") == 2))
    assert result.height > 0


def test_a_filter_on_a_column_without_bounds_reads_lists_of_matching_rows_only(merged: Path, read: Reads) -> None:
    nodes = scan(merged).nodes
    all_rows = nodes.collect()
    condition = pl.col("policy_version") == all_rows["policy_version"].max()
    read.clear()
    assert_frame_equal(nodes.filter(condition).collect(), all_rows.filter(condition))
    lists = sum(rows for _, rows, columns in read if "tokens" in columns)
    assert 0 < lists == all_rows.filter(condition).height < all_rows.height


def test_files_whose_rows_all_pass_are_read_once(recorded: Path, read: Reads) -> None:
    nodes = scan(recorded).nodes
    all_rows = nodes.collect()
    every = len(read)
    read.clear()
    condition = pl.col("group_id").is_in(all_rows["group_id"].unique().implode())
    assert_frame_equal(nodes.filter(condition).collect(), all_rows)
    assert len(read) == every > 1


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not say what a process reads")
def test_a_group_of_a_large_file_is_read_without_the_others(merged: Path) -> None:
    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text(encoding="utf-8").split()[1])

    (file,) = (merged / "nodes").glob("*.arrow")
    nodes = scan(merged).nodes
    group_nodes = nodes.filter(pl.col("group_id") == 30)
    before = bytes_read()
    assert group_nodes.collect().height > 0
    # Its blocks, of 32 kB and more, and the footer.
    assert bytes_read() - before < file.stat().st_size / 2


ids = st.integers(-2, 3 * ITERATIONS + 2)
chosen = st.one_of(
    st.tuples(st.sampled_from(["group_id", "iteration", "trajectory_id"]), ids, ids).map(
        lambda given: pl.col(given[0]).is_between(given[1], given[2])
    ),
    st.tuples(st.sampled_from(["group_id", "iteration", "trajectory_id"]), st.lists(ids, max_size=4)).map(
        lambda given: pl.col(given[0]).is_in(given[1])
    ),
    st.sampled_from([pl.col("reward") > 0, pl.col("task_id") == "task 1", pl.col("rewards").list.len() > 1]),
)
choices = st.recursive(
    chosen,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda given: given[0] & given[1]),
        st.tuples(inner, inner).map(lambda given: given[0] | given[1]),
        inner.map(lambda predicate: ~predicate),
    ),
    max_leaves=4,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices, st.sampled_from([["trajectory_id"], ["task_id", "rewards"], None]), st.none() | st.integers(0, 300))
def test_a_read_that_leaves_blocks_out_is_the_whole_one_filtered(
    merged: Path, wanted: pl.Expr, columns: list[str] | None, most: int | None
) -> None:
    frame = scan(merged).trajectories
    all_rows = frame.collect()
    frame = frame if most is None else frame.head(most)
    all_rows = all_rows if most is None else all_rows.head(most)
    chosen_columns = pl.all() if columns is None else pl.col(columns)
    result = frame.filter(wanted).select(chosen_columns).collect()
    assert_frame_equal(result, all_rows.filter(wanted).select(chosen_columns))


@pytest.mark.parametrize("table", ["nodes", "steps", "trajectories", "draws", "draw_columns"])
def test_bounds_of_blocks_are_the_least_and_the_greatest_value_of_their_rows(merged: Path, table: str) -> None:
    with Store.open(merged, read_only=True) as store:
        all_rows = getattr(scan(store), table).collect()
        ((first, count, _),) = store._core.ranges(table)
        ends, bounds, texts = store._core.blocks(table, first, count)
    known = {"iteration", "group_id", "trajectory_id"} & set(all_rows.columns)
    key = {"nodes": "node_id", "steps": "trajectory_id", "trajectories": "trajectory_id"}.get(table, "draw_id")
    assert set(bounds) == known | {key}
    assert len(ends) > 1 or table == "draw_columns"
    assert set(texts) == ({"task_id"} if table == "trajectories" else set())
    begins = [0, *ends[:-1].tolist()]
    for column, (values, block, text) in texts.items():
        parts = [set(all_rows[column][begin:end]) for begin, end in zip(begins, ends.tolist(), strict=True)]
        pairs = list(zip(block.tolist(), text.tolist(), strict=True))
        assert [{values[one] for of, one in pairs if of == place} for place in range(len(parts))] == parts
    for column, (least, greatest) in bounds.items():
        parts = [all_rows[column][begin:end].to_list() for begin, end in zip(begins, ends.tolist(), strict=True)]
        assert (least.tolist(), greatest.tolist()) == ([min(part) for part in parts], [max(part) for part in parts])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_of_any_ranges_are_those_of_the_whole_table(recorded: Path, data: st.DataObject) -> None:
    with Store.open(recorded, read_only=True) as store:
        all_rows = pl.DataFrame(store.nodes).select("node_id", "tokens")
        cuts = sorted(data.draw(st.sets(st.integers(0, all_rows.height), max_size=12)))
        firsts, ends = cuts[: len(cuts) // 2 * 2 : 2], cuts[1::2]
        tables = store._core.columns(
            "nodes", np.array(firsts, np.int64), np.array(ends, np.int64), ["tokens", "node_id"]
        )
    frames = [pl.DataFrame(table) for table in tables]
    expected = pl.concat([all_rows.clear(), *(all_rows[first:end] for first, end in zip(firsts, ends, strict=True))])
    assert_frame_equal(pl.concat([all_rows.clear(), *frames]), expected)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_files_without_block_bounds_are_filtered_correctly(tmp_path: Path, version: str) -> None:
    shutil.copytree(Path(__file__).parents[1] / "data" / version, tmp_path / "run")
    for name, column in (("nodes", "group_id"), ("trajectories", "iteration"), ("draws", "trajectory_id")):
        frame = getattr(scan(tmp_path / "run"), name)
        all_rows = frame.collect()
        for value in all_rows[column].unique().to_list():
            result = frame.filter(pl.col(column) == value).collect()
            assert_frame_equal(result, all_rows.filter(pl.col(column) == value))
            assert result.height > 0


def test_lists_of_rows_between_distant_matches_are_not_read(merged: Path, read: Reads) -> None:
    nodes = scan(merged).nodes
    all_rows = nodes.collect()
    far = all_rows["group_id"].unique().sort()[::5]
    read.clear()
    condition = pl.col("group_id").is_in(far.implode())
    assert_frame_equal(nodes.filter(condition).collect(), all_rows.filter(condition))
    lists = sum(rows for _, rows, columns in read if "tokens" in columns)
    assert lists == all_rows.filter(condition).height < all_rows.height / 2


def test_paths_of_an_iteration_read_its_blocks(merged: Path, read: Reads) -> None:
    run = scan(merged)
    all_paths = run.trajectories.agentrl.paths(run).collect()
    every = counted(read, "nodes")
    read.clear()
    last = run.trajectories.filter(pl.col("iteration") == ITERATIONS - 1)
    assert_frame_equal(last.agentrl.paths(run).collect(), all_paths.filter(pl.col("iteration") == ITERATIONS - 1))
    assert 0 < counted(read, "nodes") < every / 2


def test_a_filter_that_nothing_passes_reads_nothing(recorded: Path, read: Reads) -> None:
    run = scan(recorded)
    result = run.nodes.filter(pl.col("group_id") < -np.int64(1)).collect()
    assert (result.height, result.schema) == (0, run.nodes.collect_schema())
    assert read == []
