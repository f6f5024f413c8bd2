"""Filters of a scan: only files that can have the rows are read, and the rows are those of a filter on all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from stores import trained

from agentrl_core import Store
from agentrl_core.integrations.polars import _stored, scan
from agentrl_core.integrations.polars._bounds import teller

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


@given(rows, predicates)
def test_what_is_told_of_a_file_is_so_of_its_rows(values: list[tuple[int, int, int | None]], wanted: pl.Expr) -> None:
    frame = pl.DataFrame(values, schema={"a": pl.Int64, "b": pl.Int64, "c": pl.Int64}, orient="row")
    bounds = {name: (min(frame[name].to_list()), max(frame[name].to_list())) for name in ("a", "b")}
    passing, said = frame.filter(wanted).height, teller(wanted)(bounds)
    assert said is not False or passing == 0
    assert said is not True or passing == frame.height


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
        (pl.col("c") == 4, None),  # nothing is known of c
        (pl.col("a").is_in([0, 8]) & (pl.col("b") == 5), False),
        (pl.col("a").is_in([3, 1, 2, 8]), True),
        (pl.col("a").is_in([3, 1, 1, 8, None]), None),
        (pl.col("a").is_in([]), False),
        (pl.col("a").is_in([4]) | pl.col("a").is_in([1, 2, 3]), True),
        (~pl.col("a").is_in([1, 2, 3]), False),
        (pl.col("d").is_in([-1, (1 << 50) + 1]), False),  # far apart, but few are looked for
        (pl.col("d").is_in(pl.Series([1 << 40], dtype=pl.UInt64).implode()), None),
        (pl.col("a").cast(pl.UInt8) - 2 > 200, None),  # 1 - 2 is 255
        (pl.col("d") > 1 << 40, None),  # too far apart to try all
        (pl.lit(value=True), None),
    ],
)
def test_what_bounds_say(wanted: pl.Expr, expected: bool | None) -> None:
    assert teller(wanted)({"a": (1, 3), "b": (5, 9), "d": (0, 1 << 50)}) is expected


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with Store.open(folder, sync="never") as store:
        for iteration in range(ITERATIONS):
            trained(store, iteration)
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read."""
    found: list[Path] = []
    columns: Callable[..., pl.LazyFrame] = _stored._columns

    def counting(rows: _stored._Rows, *more: object) -> pl.LazyFrame:
        found.append(rows.file)
        return columns(rows, *more)

    monkeypatch.setattr(_stored, "_columns", counting)
    return found


@pytest.mark.parametrize("few", [0, 4096])
@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("trajectories", pl.col("iteration") == 3),
        ("trajectories", pl.col("iteration").is_between(20, 22) & (pl.col("reward") > 0)),
        ("trajectories", pl.col("group_id") >= 60),
        ("draws", pl.col("iteration") == ITERATIONS - 1),
        ("nodes", pl.col("group_id") == 5),
        ("nodes", (pl.col("group_id") < 9) & (pl.col("kind") == "action")),
        ("nodes", pl.col("tokens").list.len() > 3),
        ("steps", pl.col("trajectory_id") == 7),
        ("metrics", pl.col("iteration") == 2),
    ],
)
def test_a_filter_reads_the_files_that_can_have_its_rows(
    recorded: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch, table: str, wanted: pl.Expr, few: int
) -> None:
    monkeypatch.setattr(_stored, "_FEW", few)
    frame = getattr(scan(recorded), table)
    expected = frame.collect().filter(wanted)
    assert expected.height > 0
    every = set(read)
    assert len(every) > 2, "the run has several files of the table"
    read.clear()
    assert_frame_equal(frame.filter(wanted).collect(), expected)
    if table == "nodes" and "tokens" in wanted.meta.root_names():
        assert set(read) == every
    else:
        assert 0 < len(set(read)) < len(every)


def test_a_file_whose_rows_all_pass_is_read_once(
    recorded: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stored, "_FEW", 0)
    nodes = scan(recorded).nodes
    groups = nodes.select("group_id").collect()["group_id"]
    every = len(read)
    read.clear()
    wanted = pl.col("group_id").is_in(groups.unique().implode())
    assert_frame_equal(nodes.filter(wanted).collect(), nodes.collect())
    assert len(read) == 2 * every > 2, "once by the filter, once without it"


def test_rows_that_lie_far_apart_are_read_without_those_between(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stored, "_FEW", 0)
    columns, taken = _stored._columns, []

    def counting(rows: _stored._Rows, wanted: pl.Schema, *more: pl.Schema) -> pl.LazyFrame:
        taken.extend([rows.height] if "tokens" in wanted else [])
        return columns(rows, wanted, *more)

    monkeypatch.setattr(_stored, "_columns", counting)
    nodes = scan(recorded).nodes
    whole = nodes.collect()
    far = whole["group_id"].unique().sort()[::5]
    taken.clear()
    wanted = pl.col("group_id").is_in(far.implode())
    assert_frame_equal(nodes.filter(wanted).collect(), whole.filter(wanted))
    assert sum(taken) == whole.filter(wanted).height < whole.height / 2


def test_paths_of_an_iteration_read_its_files(recorded: Path, read: list[Path]) -> None:
    run = scan(recorded)
    whole = run.trajectories.agentrl.paths(run).collect()
    every = {file for file in read if file.parent.name == "nodes"}
    read.clear()
    last = run.trajectories.filter(pl.col("iteration") == ITERATIONS - 1)
    assert_frame_equal(last.agentrl.paths(run).collect(), whole.filter(pl.col("iteration") == ITERATIONS - 1))
    files = {file for file in read if file.parent.name == "nodes"}
    assert 0 < len(files) < len(every)


def test_a_filter_that_nothing_passes_reads_nothing(recorded: Path, read: list[Path]) -> None:
    run = scan(recorded)
    found = run.nodes.filter(pl.col("group_id") < -np.int64(1)).collect()
    assert (found.height, found.schema) == (0, run.nodes.collect_schema())
    assert read == []
