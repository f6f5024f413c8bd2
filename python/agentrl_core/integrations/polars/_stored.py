"""A table of a store as a lazy frame that finds its rows wherever they are when it is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import polars as pl
from polars.io.plugins import register_io_source

from agentrl_core.data.store import Store

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

Found = TypeVar("Found")


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
        schemas = _again(lambda: [pl.read_ipc_schema(file) for file, _ in store.files(name)])
        schema = _diagonal([pl.LazyFrame(schema=schema), *map(_empty, schemas)]).collect_schema()

    elif name in ("steps", "trajectories"):
        # All files of a store have the same facts.
        for own in _again(lambda: [pl.read_ipc_schema(file) for file, _ in store.files(name)[-1:]]):
            schema.update({column: kind for column, kind in own.items() if column == "facts"})

    def rows(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = pl.Schema({column: schema[column] for column in columns or schema})
        place = 0
        while most is None or place < most:
            part = _again(partial(_rows_at, store, name, place, most, wanted, schema))
            if part is None:
                break
            place += part.height
            yield part if predicate is None else part.filter(predicate)
        if place == 0:
            yield pl.DataFrame(schema=wanted)

    return register_io_source(rows, schema=schema, is_pure=True)


def _again(read: Callable[[], Found]) -> Found:
    """What is read, though the writer may take a file away between asking for it and opening it."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def _rows_at(
    store: Store, name: str, place: int, most: int | None, wanted: pl.Schema, schema: pl.Schema
) -> pl.DataFrame | None:
    """The rows from a place on to the end of their file, with some of the columns; None behind the last."""
    first = 0
    for file, count in store.files(name):
        if place < first + count:
            end = first + count if most is None else min(first + count, most)
            part = pl.scan_ipc(file.absolute(), glob=False).slice(place - first, end - place)
            own = part.collect_schema()
            part = part.rename(_renamed(own, set(schema)))
            own = part.collect_schema()
            columns = (
                (pl.col(column) if column in own else pl.repeat(None, pl.len())).cast(kind).alias(column)
                for column, kind in wanted.items()
            )
            return part.select(*columns).collect()
        first += count
    return None


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
