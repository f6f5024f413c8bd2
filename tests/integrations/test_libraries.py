"""Tables and columns pass unchanged through Polars, pyarrow, DuckDB and arro3, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arro3.core as arro3
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from agentrl_core import Batch, Forest, Store, Table, advantage
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

TABLES = (
    "nodes",
    "steps",
    "trajectories",
    "draws",
    "tasks",
    "decisions",
    "draw_columns",
    "step_columns",
    "node_columns",
)


def example(iteration: int = 3) -> Batch:
    """Return two groups of two trajectories, one a branch; columns at every level."""
    forest = Forest(iteration=iteration, seed=1)
    for group in range(2):
        forest.add_group(group, f"täsk {group}")
        trunk = forest.start(group, 0)
        forest.append(trunk, [1, 2], kind="prompt")
        action = forest.append(
            trunk, [3, 4, 5], kind="action", logprobs=[-0.5, -1.0, -0.25], temperature=0.5, policy_version=3
        )
        branch = forest.fork(trunk, node=action, end=1)
        forest.step(trunk, reward=0.5)
        forest.append(trunk, [6], kind="observation")
        forest.append(trunk, [7, 8], kind="action", logprobs=[-0.125, -2.0], entropies=[0.5, 0.25])
        forest.append(branch, [9], kind="action", logprobs=[-0.75])
        forest.finish(trunk, reward=1.0 + group, success=True, info={"why": "ja"})
        forest.finish(branch, reward=None, status="truncated")
    batch = forest.freeze()
    batch = batch.with_columns("draw", score=np.arange(4, dtype=np.float32))
    batch = batch.with_columns("step", advantage=np.arange(6) / 4)
    batch = batch.with_columns("token", weight=np.arange(batch.offsets("token")[-1]) / 8)
    return batch.with_columns("node_token", value=np.arange(batch.offsets("node_token")[-1]) / 16)


@pytest.fixture(scope="module")
def batch() -> Batch:
    return example()


@pytest.fixture(scope="module", params=["batch", "store"])
def tables(request: pytest.FixtureRequest, batch: Batch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return tables of one part each, and those of a store, of several."""
    if request.param == "batch":
        return batch
    store = Store.open(tmp_path_factory.mktemp("store"))
    store.append(batch, iteration=3)
    store.append(store.rebase(example(4)), iteration=4)
    store.flush()
    return store


def through_duckdb(table: Table) -> pa.Table:
    return duckdb.from_arrow(pa.RecordBatchReader.from_stream(table)).to_arrow_table()


OUT: dict[str, Callable[[Table], pa.Table]] = {
    "polars": lambda table: pl.DataFrame(table).to_arrow(),
    "duckdb": through_duckdb,
    "arro3": lambda table: pa.table(arro3.Table.from_arrow(table)),
}


@pytest.mark.parametrize("library", list(OUT))
@pytest.mark.parametrize("name", TABLES)
def test_every_library_reads_every_table(tables: Any, name: str, library: str) -> None:
    table = getattr(tables, name, None)
    if table is None:
        assert name.endswith("_columns") or name == "decisions"
        assert isinstance(tables, Store)
        return
    expected = pa.table(table)
    result = OUT[library](table)
    assert result.column_names == expected.column_names == table.column_names
    assert result.to_pylist() == expected.to_pylist()


def buffers(column: pa.ChunkedArray) -> list[int]:
    return [buffer.address for chunk in column.chunks for buffer in chunk.buffers() if buffer is not None]


@pytest.mark.parametrize("library", ["pyarrow", "arro3"])
def test_a_table_is_read_without_a_copy(batch: Batch, library: str) -> None:
    table = batch.nodes
    first, second = pa.table(table), OUT.get(library, pa.table)(table)
    for name in ("node_id", "tokens", "logprobs"):
        assert buffers(first[name]) == buffers(second[name]) != []


def test_polars_reads_numbers_without_a_copy(batch: Batch) -> None:
    address = buffers(pa.table(batch.nodes)["node_id"])[-1]
    assert pl.DataFrame(batch.nodes)["node_id"].to_numpy(allow_copy=False).ctypes.data == address


@pytest.mark.parametrize("make", [pl.Series, pa.array], ids=["polars", "pyarrow"])
def test_numbers_without_nulls_are_taken_without_a_copy(make: Callable[[Any], Any]) -> None:
    values = np.arange(1000, dtype=np.float64)
    for begin in (0, 3):
        numbers = columns.numbers(make(values)[begin:], "rewards")
        assert numbers.ctypes.data == values[begin:].ctypes.data
        assert len(numbers) == 1000 - begin


VALUES = [9.0, 1.0, 2.0, None, 4.5, 9.0]
CUT = slice(1, 5)
"""Slices of a longer array: their buffers begin before them."""


class OneCapsule:
    """An array that supports only the C data interface."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._array.__arrow_c_array__(requested_schema)


class OneStream:
    """A chunked array that supports only the C stream interface."""

    def __init__(self, array: pa.ChunkedArray) -> None:
        self._array = array

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._array.__arrow_c_stream__(requested_schema)


def split(array: pa.Array) -> pa.ChunkedArray:
    return pa.chunked_array([array[:1], array[1:1], array[1:]])


def through_a_query(array: pa.Array) -> Any:
    relation = duckdb.from_arrow(pa.table({"place": range(len(array)), "x": array}))
    return relation.order("place").select("x")


MAKE: dict[str, Callable[[pa.Array], Any]] = {
    "pyarrow": lambda array: array,
    "pyarrow chunked": split,
    "polars": pl.Series,
    "polars chunked": lambda array: pl.concat([pl.Series(array[:1]), pl.Series(array[1:])], rechunk=False),
    "arro3": arro3.Array,
    "arro3 chunked": lambda array: arro3.ChunkedArray([arro3.Array(array[:1]), arro3.Array(array[1:])]),
    "duckdb": through_a_query,
    "one capsule": OneCapsule,
    "one stream": lambda array: OneStream(split(array)),
}
LIBRARIES = list(MAKE)


def column_of(library: str, kind: pa.DataType, values: list[Any] = VALUES, cut: slice = CUT) -> Any:
    """Return a part of an array as a column of a library; skip if the library lacks it."""
    try:
        return MAKE[library](pa.array(values, kind)[cut])
    except (NotImplementedError, pl.exceptions.ComputeError, duckdb.Error) as error:
        pytest.skip(f"{library} has no {kind}: {error}")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()])
def test_floats_of_every_library(library: str, kind: pa.DataType) -> None:
    numbers = columns.numbers(column_of(library, kind), "rewards")
    assert numbers.dtype == (np.float32 if kind == pa.float32() else np.float64)
    np.testing.assert_array_equal(numbers, [1.0, 2.0, np.nan, 4.5])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64()])
def test_whole_numbers_of_every_library(library: str, kind: pa.DataType) -> None:
    known = column_of(library, kind, [9, 1, 2, 0, 4, 9])
    np.testing.assert_array_equal(columns.integers(known, "steps"), [1, 2, 0, 4])
    np.testing.assert_array_equal(columns.numbers(known, "steps"), [1.0, 2.0, 0.0, 4.0])
    holes = column_of(library, kind, [9, 1, 2, None, 4, 9])
    np.testing.assert_array_equal(columns.numbers(holes, "rewards"), [1.0, 2.0, np.nan, 4.0])
    with pytest.raises(InvalidInputError, match=r"steps\[\d\] is nan; give whole numbers without missing values"):
        columns.integers(holes, "steps")


@pytest.mark.parametrize("library", LIBRARIES)
def test_masks_of_every_library(library: str) -> None:
    values = [True, True, False, True, False, False]
    assert columns.mask(column_of(library, pa.bool_(), values), "valid").tolist() == [True, False, True, False]
    with pytest.raises(InvalidInputError, match="valid has 1 nulls among its booleans; fill them first"):
        columns.mask(column_of(library, pa.bool_(), [True, True, None, True, False, False]), "valid")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(1),
        pa.dictionary(pa.int8(), pa.string()),
        pa.int64(),
        pa.uint32(),
    ],
)
def test_keys_of_every_library(library: str, kind: pa.DataType) -> None:
    text = ["q", "b", "a", "b", "a", "q"]
    if pa.types.is_integer(kind):
        values: list[Any] = [ord(letter) for letter in text]
    else:
        values = text if "string" in str(kind) else [letter.encode() for letter in text]
    try:
        column = column_of(library, kind, values)
    except (NotImplementedError, pa.ArrowNotImplementedError) as error:
        pytest.skip(f"{library} has no {kind}: {error}")
    assert columns.keys(column, "group_ids").tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_kernel_gives_equal_results_for_columns_of_every_library(library: str) -> None:
    rewards = column_of(library, pa.float64(), [9.0, 1.0, 2.0, 7.0, 4.5, 9.0])
    groups = column_of(library, pa.string(), ["q", "b", "a", "b", "a", "q"])
    expected = advantage.group_relative([1.0, 2.0, 7.0, 4.5], [1, 0, 1, 0])
    np.testing.assert_array_equal(advantage.group_relative(rewards, groups), expected)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
def test_lists_become_columns_of_tokens(batch: Batch, library: str, kind: Callable[[pa.DataType], pa.DataType]) -> None:
    lengths = np.diff(batch.offsets("token")).tolist()
    values = [[8.0], *np.split(np.arange(sum(lengths)) / 4, np.cumsum(lengths)[:-1]), [8.0]]
    column = column_of(library, kind(pa.float64()), values, slice(1, 1 + len(lengths)))
    result = batch.with_columns("token", mine=column).column("mine", "token")
    np.testing.assert_array_equal(result, np.arange(sum(lengths)) / 4)


def test_lists_of_the_tables_come_back(batch: Batch) -> None:
    nodes = pl.DataFrame(batch.nodes)
    again = batch.with_columns("node_token", mine=nodes["logprobs"], token_again=nodes["tokens"])
    np.testing.assert_array_equal(
        again.column("mine", "node_token"), batch.column("behaviour_logprob", "node_token"), strict=True
    )
    np.testing.assert_array_equal(again.column("token_again", "node_token"), batch.column("token", "node_token"))


def test_lists_that_do_not_fit_are_refused(batch: Batch) -> None:
    lengths = np.diff(batch.offsets("token")).tolist()
    lists = [[0.0] * length for length in lengths]
    with pytest.raises(InvalidInputError, match=r"mine has 5 lists; give one for each of 6 rows"):
        batch.with_columns("token", mine=pl.Series(lists[:-1]))
    lists[2].append(0.0)
    expected = rf"mine has a list of {lengths[2] + 1} values in row 2, which has {lengths[2]} tokens"
    with pytest.raises(InvalidInputError, match=expected):
        batch.with_columns("token", mine=pl.Series(lists))
    with pytest.raises(InvalidInputError, match=r"mine has Arrow type \w+; give numbers"):
        batch.with_columns("token", mine=pl.Series([["a"] * length for length in lengths]))


def test_invalid_columns_are_named_in_the_error() -> None:
    two = duckdb.sql("select 1 as a, 2 as b")
    with pytest.raises(InvalidInputError, match="rewards has the columns a, b; select one of them"):
        columns.numbers(two, "rewards")
    with pytest.raises(InvalidInputError, match="rewards has Arrow type Utf8; give numbers"):
        columns.numbers(OneCapsule(pa.array(["a"])), "rewards")
    with pytest.raises(InvalidInputError, match="group_ids has 1 nulls, which belong to no group; fill them first"):
        columns.keys(pa.array(["a", None]), "group_ids")
    with pytest.raises(InvalidInputError, match=r"steps has Arrow type UInt64 .*18446744073709551615"):
        columns.integers(OneCapsule(pa.array([2**64 - 1], pa.uint64())), "steps")
