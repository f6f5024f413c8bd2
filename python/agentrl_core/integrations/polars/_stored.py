"""A table of a store as a lazy frame that finds its rows wherever they are when it is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from agentrl_core.data.store import Store
from agentrl_core.integrations.polars._bounds import Told, teller

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

# So few rows are read with all columns at once, and with what lies on both sides of them.
_FEW = 4096

# Files, of 64 MB, that are in memory at once.
_AT_ONCE = 4

Found = TypeVar("Found")


class _Rows(NamedTuple):
    """Some rows of a file, and the bounds of the file's columns."""

    file: Path
    first: int
    height: int
    bounds: dict[str, tuple[int, int]]

    def part(self, first: int, height: int) -> _Rows:
        """Some of these rows, of which `first` is the number of the first."""
        return self._replace(first=self.first + first, height=height)


Read = Callable[[list[_Rows]], list[pl.DataFrame]]
"""What is wanted of the rows of some files, in their order."""


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
        told = None if predicate is None else teller(predicate)
        for part in _parts(store, name, most, partial(_chosen, wanted, schema, predicate, told)):
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
            rest = _rest(store, name, place, most)
            # As many at once as there are threads that read.
            while files := list(islice(rest, min(pl.thread_pool_size(), _AT_ONCE))):
                frames = read(files)
                place += sum(file.height for file in files)
                yield from frames
        except FileNotFoundError:
            attempts += 1
            if attempts == _ATTEMPTS:
                raise
        else:
            return


def _rest(store: Store, name: str, place: int, most: int | None) -> Iterator[_Rows]:
    """The rows of a table from one of them on, up to a number of rows in all."""
    begin = 0
    for file, count, bounds in store.files(name):
        end = begin + count if most is None else min(begin + count, most)
        first = max(place, begin)
        if first < end:
            yield _Rows(file, first - begin, end - first, bounds)
        begin += count


def _again(read: Callable[[], Found]) -> Found:
    """What is read, though the writer may take a file away between asking for it and opening it."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def _chosen(
    wanted: pl.Schema, schema: pl.Schema, predicate: pl.Expr | None, told: Told | None, files: list[_Rows]
) -> list[pl.DataFrame]:
    """The rows of some files that a predicate is true of, with some of the columns."""
    if predicate is None or told is None:
        return pl.collect_all([_columns(file, wanted, schema) for file in files])
    asked = pl.Schema({column: schema[column] for column in predicate.meta.root_names()})
    is_cheap = bool(asked) and not any(isinstance(kind, pl.List) for kind in asked.values())
    passes = [told(file.bounds) for file in files]
    # What the predicate reads tells where its rows are: those of a group or an iteration lie side by side.
    looked = [place for place, file in enumerate(files) if passes[place] is None and file.height > _FEW and is_cheap]
    is_true = predicate.fill_null(value=False)
    masks = pl.collect_all([_columns(files[place], asked, schema).select(is_true) for place in looked])
    runs = {place: _runs(mask.to_series()) for place, mask in zip(looked, masks, strict=True)}
    parts: list[tuple[_Rows, pl.Expr | pl.Series | None]] = []
    for place, file in enumerate(files):
        if place in runs:
            parts += [(file.part(begin, len(mask)), mask) for begin, mask in runs[place]]
        elif passes[place] is not False:
            parts.append((file, None if passes[place] else predicate))
    frames = pl.collect_all([_columns(part, wanted, schema) for part, _ in parts])
    return [frame if mask is None else frame.filter(mask) for frame, (_, mask) in zip(frames, parts, strict=True)]


def _runs(mask: pl.Series) -> list[tuple[int, pl.Series]]:
    """Where rows that are true lie: the first one of each run, and what of the mask belongs to it."""
    places = mask.arg_true().to_numpy()
    if not len(places):
        return []
    ends = np.flatnonzero(np.diff(places) > _FEW + 1)
    begins = [places[0], *places[ends + 1]]
    return [
        (int(begin), mask[int(begin) : int(end) + 1])
        for begin, end in zip(begins, [*places[ends], places[-1]], strict=True)
    ]


def _columns(rows: _Rows, wanted: pl.Schema, schema: pl.Schema) -> pl.LazyFrame:
    """Some rows of a file, with some of the columns."""
    part = pl.scan_ipc(rows.file.absolute(), glob=False).slice(rows.first, rows.height)
    part = part.rename(_renamed(part.collect_schema(), set(schema)))
    own = part.collect_schema()
    columns = (
        (pl.col(column) if column in own else pl.repeat(None, pl.len())).cast(kind).alias(column)
        for column, kind in wanted.items()
    )
    return part.select(*columns)


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
