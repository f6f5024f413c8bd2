"""A table of a store as a lazy frame that finds its rows when it is collected, even if files were merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from agentrl_core.data.store import Store
from agentrl_core.integrations.polars._predicate_bounds import Bounds, BoundsCheck, ColumnTexts, bounds_check
from agentrl_core.integrations.polars._token_paths import Indices, ranges

# Columns that computed tables always have.
KEYS: dict[str, dict[str, pl.DataType]] = {
    "draw_columns": {"draw_id": pl.Int64()},
    "step_columns": {"draw_id": pl.Int64(), "step": pl.Int32()},
    "node_columns": {"node_id": pl.Int64()},
}

# Schema of a table that stores have and batches do not.
METRICS: dict[str, pl.DataType] = {"iteration": pl.Int64(), "name": pl.String(), "value": pl.Float64()}

# Suffix of list columns if other files have single values under the same name.
_OF_TOKENS = "_of_tokens"

# How often reading is retried if the writer merges files meanwhile.
_ATTEMPTS = 100

Found = TypeVar("Found")


def frame(store: Store, name: str, empty: pl.LazyFrame) -> pl.LazyFrame:
    """Return a table of a reader's snapshot as a lazy frame.

    Args:
        store: the reader; it stays at its snapshot.
        name: name of the table.
        empty: the table without rows.

    Raises:
        NotFoundError: iterations were dropped since the reader was opened.
        StoreError: a file is missing.
    """
    schema = pl.Schema(empty.collect_schema())
    if name in KEYS:
        # Each iteration has the computed columns of its recipe.
        schemas = _again(lambda: [_schema(file) for file, *_ in store.files(name)])
        schema = _diagonal([pl.LazyFrame(schema=schema), *map(_empty, schemas)]).collect_schema()
    elif name in ("steps", "trajectories"):
        # All files of a store have the same facts.
        for file_schema in _again(lambda: [_schema(file) for file, *_ in store.files(name)[-1:]]):
            schema.update({column: kind for column, kind in file_schema.items() if column == "facts"})

    def rows(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        table = _Table(store, name, schema)
        wanted = pl.Schema({column: schema[column] for column in columns or schema})
        check = None if predicate is None else bounds_check(predicate)
        remaining, has_rows = most, False
        for first, count, bounds in store._core.ranges(name):  # noqa: SLF001
            height = count if remaining is None else min(count, remaining)
            remaining = None if remaining is None else remaining - height
            file = _RowRanges(np.array([first]), np.array([first + height]))
            if predicate is None or check is None:
                part: pl.DataFrame | None = table.read(file, wanted)
            else:
                part = table.chosen(file, bounds, wanted, predicate, check)
            if height and part is not None:
                has_rows = True
                yield part
        if not has_rows:
            yield pl.DataFrame(schema=wanted)

    return register_io_source(rows, schema=schema, is_pure=True)


class _RowRanges(NamedTuple):
    """Row numbers as ascending ranges: the first row of each, and the one after its last."""

    firsts: Indices
    ends: Indices

    def numbers(self) -> Indices:
        """Return the number of each row."""
        return ranges(self.firsts, self.ends - self.firsts)


class _Table(NamedTuple):
    """A table of a store, whose files may lack some of its columns."""

    store: Store
    name: str
    schema: pl.Schema

    def read(self, rows: _RowRanges, wanted: pl.Schema) -> pl.DataFrame:
        """Read some columns of some rows, from the files that currently have them."""
        names = [*wanted, *(name.removesuffix(_OF_TOKENS) for name in wanted if name.endswith(_OF_TOKENS))]
        # Without a name of its own, the native table is freed before the parts are joined.
        parts = [
            pl.DataFrame(table)
            for table in self.store._core.columns(self.name, rows.firsts, rows.ends, names)  # noqa: SLF001
        ]
        return pl.concat([self._whole(part, wanted) for part in parts] or [pl.DataFrame(schema=wanted)], rechunk=False)

    def _whole(self, part: pl.DataFrame, wanted: pl.Schema) -> pl.DataFrame:
        part = part.rename(_renamed(part.schema, set(self.schema)))
        return part.select(
            (pl.col(column) if column in part.columns else pl.repeat(None, pl.len())).cast(kind).alias(column)
            for column, kind in wanted.items()
        )

    def chosen(
        self, file: _RowRanges, bounds: Bounds, wanted: pl.Schema, predicate: pl.Expr, check: BoundsCheck
    ) -> pl.DataFrame | None:
        """Return the rows of a file that pass a predicate; None if its bounds exclude all rows."""
        can, every = check(bounds)
        if not can or every:
            return self.read(file, wanted) if can else None
        first, end = int(file.firsts[0]), int(file.ends[0])
        ends, of_blocks, texts = self.store._core.blocks(self.name, first, end - first)  # noqa: SLF001
        known = {**of_blocks, **{name: ColumnTexts(*of_column) for name, of_column in texts.items()}}
        can, every = (np.broadcast_to(one, len(ends)) for one in check(known))
        rows = _RowRanges(np.append(first, ends[:-1])[can], ends[can])
        if every[can].all():
            return self.read(rows, wanted) if len(rows.ends) else None
        needed = pl.Schema({column: self.schema[column] for column in predicate.meta.root_names()})
        if not needed or _has_lists(needed) or not _has_lists(wanted):
            return self.read(rows, pl.Schema({**wanted, **needed})).filter(predicate).select(wanted.names())
        # Lists are most of a row's data, so the rows to read are selected by the other columns first.
        passes = self.read(rows, needed).select(predicate.fill_null(value=False)).to_series()
        numbers = rows.numbers()[passes.to_numpy()]
        cuts = np.flatnonzero(np.diff(numbers) > 1)
        return (
            self.read(_RowRanges(numbers[np.append(0, cuts + 1)], numbers[np.append(cuts, -1)] + 1), wanted)
            if len(numbers)
            else None
        )


def _schema(path: Path) -> dict[str, pl.DataType]:
    with path.open("rb") as file:  # Polars opens no path that is not UTF-8
        return pl.read_ipc_schema(file)


def _has_lists(schema: pl.Schema) -> bool:
    return any(isinstance(kind, pl.List) for kind in schema.values())


def _again(read: Callable[[], Found]) -> Found:
    """Read, and retry if the writer removed a file between listing and opening it."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def _empty(schema: dict[str, pl.DataType]) -> pl.LazyFrame:
    return pl.LazyFrame(schema=schema)


def _diagonal(parts: list[pl.LazyFrame]) -> pl.LazyFrame:
    """Concatenate frames with different columns; lists are renamed if another frame has single values of that name."""
    schemas = [part.collect_schema() for part in parts]
    values = {name for schema in schemas for name, kind in schema.items() if not isinstance(kind, pl.List)}
    names = {f"{name}{_OF_TOKENS}" for name in values}
    renamed = [part.rename(_renamed(schema, names)) for part, schema in zip(parts, schemas, strict=True)]
    return pl.concat(renamed, how="diagonal_relaxed")


def _renamed(schema: pl.Schema, names: set[str]) -> dict[str, str]:
    """Return the new names of list columns whose names are those of single values in other files."""
    lists = {name: f"{name}{_OF_TOKENS}" for name, kind in schema.items() if isinstance(kind, pl.List)}
    return {name: other for name, other in lists.items() if other in names}
