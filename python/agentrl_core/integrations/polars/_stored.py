"""A table of a store as a lazy frame that finds its rows wherever they are when it is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import polars as pl
from polars.io.plugins import register_io_source

from agentrl_core.data.store import Store
from agentrl_core.integrations.polars._bounds import can_be_true

# Columns of computed tables that are always there.
KEYS: dict[str, dict[str, pl.DataType]] = {
    "draw_columns": {"draw_id": pl.Int64()},
    "step_columns": {"draw_id": pl.Int64(), "step": pl.Int32()},
    "node_columns": {"node_id": pl.Int64()},
}

# What a batch does not have, and a store does.
METRICS: dict[str, pl.DataType] = {"iteration": pl.Int64(), "name": pl.String(), "value": pl.Float64()}

# How often files that the writer merges away are looked for again.
_ATTEMPTS = 100

# So few rows are read with all columns at once.
_FEW = 4096

Found = TypeVar("Found")

Read = Callable[[Path, int, int, dict[str, tuple[int, int]]], pl.DataFrame | None]
"""What is wanted of some rows of a file: its place, the first row and how many, and the bounds of its columns."""


def frame(store: Store, name: str, empty: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of a table that a reader sees.

    Args:
        store: the reader; it stays at its snapshot.
        name: of the table.
        empty: the table without rows.

    Raises:
        NotFoundError: iterations were dropped since the reader was opened.
        StoreError: a file is missing.
    """
    schema = pl.Schema(empty.collect_schema())
    if name in KEYS:
        # Each iteration has the computed columns of its recipe.
        schemas = _again(lambda: [pl.read_ipc_schema(file) for file, *_ in store.files(name)])
        schema = _diagonal([pl.LazyFrame(schema=schema), *map(_empty, schemas)]).collect_schema()

    elif name in ("steps", "trajectories"):
        # All files of a store have the same facts.
        for own in _again(lambda: [pl.read_ipc_schema(file) for file, *_ in store.files(name)[-1:]]):
            schema.update({column: kind for column, kind in own.items() if column == "facts"})

    def rows(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = pl.Schema({column: schema[column] for column in columns or schema})
        found = False
        for part in _parts(store, name, most, partial(_chosen, wanted, schema, predicate)):
            found = True
            yield part
        if not found:
            yield pl.DataFrame(schema=wanted)

    return register_io_source(rows, schema=schema, is_pure=True)


def _parts(store: Store, name: str, most: int | None, read: Read) -> Iterator[pl.DataFrame]:
    """What is read of each file in turn; where the writer has merged some meanwhile, of those that have their rows."""
    place, attempts = 0, 0
    while True:
        try:
            first = 0
            for file, count, bounds in store.files(name):
                end = first + count if most is None else min(first + count, most)
                if place < end:
                    part = read(file, place - first, end - place, bounds)
                    place = end
                    if part is not None:
                        yield part
                first += count
        except FileNotFoundError:
            attempts += 1
            if attempts == _ATTEMPTS:
                raise
        else:
            return


def _again(read: Callable[[], Found]) -> Found:
    """What is read, though the writer may take a file away between asking for it and opening it."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def _chosen(
    wanted: pl.Schema,
    schema: pl.Schema,
    predicate: pl.Expr | None,
    file: Path,
    first: int,
    count: int,
    bounds: dict[str, tuple[int, int]],
) -> pl.DataFrame | None:
    """The rows of a part of a file that a predicate is true of, with some of the columns; None where there are none."""
    if predicate is None:
        return _columns(file, first, count, wanted, schema)
    if not can_be_true(predicate, bounds):
        return None
    asked = pl.Schema({column: schema[column] for column in predicate.meta.root_names()})
    if count <= _FEW or not asked or any(isinstance(kind, pl.List) for kind in asked.values()):
        return _columns(file, first, count, wanted, schema).filter(predicate)
    # What the predicate reads tells where its rows are: those of a group or an iteration lie side by side.
    mask = _columns(file, first, count, asked, schema).select(predicate.fill_null(value=False)).to_series()
    places = mask.arg_true()
    if len(places) == 0:
        return None
    begin, end = places[0], places[-1] + 1
    part = _columns(file, first + begin, end - begin, wanted, schema)
    return part if len(places) == end - begin else part.filter(mask[begin:end])


def _columns(file: Path, first: int, count: int, wanted: pl.Schema, schema: pl.Schema) -> pl.DataFrame:
    """Some rows of a file, with some of the columns."""
    part = pl.scan_ipc(file.absolute(), glob=False).slice(first, count)
    part = part.rename(_renamed(part.collect_schema(), set(schema)))
    own = part.collect_schema()
    columns = (
        (pl.col(column) if column in own else pl.repeat(None, pl.len())).cast(kind).alias(column)
        for column, kind in wanted.items()
    )
    return part.select(*columns).collect()


def _empty(schema: dict[str, pl.DataType]) -> pl.LazyFrame:
    return pl.LazyFrame(schema=schema)


def _diagonal(parts: list[pl.LazyFrame]) -> pl.LazyFrame:
    """Parts of different columns below each other. Lists get another name where there are values of their name too."""
    schemas = [part.collect_schema() for part in parts]
    values = {name for schema in schemas for name, kind in schema.items() if not isinstance(kind, pl.List)}
    names = {f"{name}_of_tokens" for name in values}
    renamed = [part.rename(_renamed(schema, names)) for part, schema in zip(parts, schemas, strict=True)]
    return pl.concat(renamed, how="diagonal_relaxed")


def _renamed(schema: pl.Schema, names: set[str]) -> dict[str, str]:
    """The other names of lists whose own name is that of values in other files."""
    lists = {name: f"{name}_of_tokens" for name, kind in schema.items() if isinstance(kind, pl.List)}
    return {name: other for name, other in lists.items() if other in names}
