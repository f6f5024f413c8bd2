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
from agentrl_core.integrations.polars._bounds import can_be_true

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
def test_no_file_with_a_row_that_passes_is_passed_over(
    values: list[tuple[int, int, int | None]], wanted: pl.Expr
) -> None:
    frame = pl.DataFrame(values, schema={"a": pl.Int64, "b": pl.Int64, "c": pl.Int64}, orient="row")
    bounds = {name: (min(frame[name].to_list()), max(frame[name].to_list())) for name in ("a", "b")}
    if frame.filter(wanted).height:
        assert can_be_true(wanted, bounds)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (pl.col("a") == 4, False),
        (pl.col("a") == 3, True),
        ((pl.col("a") > 1) & (pl.col("b") > 9), False),  # b is 5 to 9
        ((pl.col("a") > 1) | (pl.col("b") > 9), True),
        ((pl.col("c") > 0) & (pl.col("a") % 5 == 4), False),  # none of 1, 2, 3
        (pl.col("c").is_null() & (pl.col("b") == 7), True),
        (pl.col("c") == 4, True),  # nothing is known of c
        (pl.col("a").is_in([0, 8]) & (pl.col("b") == 5), False),
        (pl.col("a").cast(pl.UInt8) - 2 > 200, True),  # 1 - 2 is 255
        (pl.col("d") > 1 << 40, True),  # too far apart to try all
    ],
)
def test_what_bounds_say(wanted: pl.Expr, expected: bool) -> None:
    assert can_be_true(wanted, {"a": (1, 3), "b": (5, 9), "d": (0, 1 << 50)}) is expected


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
    columns: Callable[..., pl.DataFrame] = _stored._columns

    def counting(file: Path, *more: object) -> pl.DataFrame:
        found.append(file)
        return columns(file, *more)

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
