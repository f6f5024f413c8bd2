"""Lazy frames computed from other frames when they are collected, with only the requested rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
from polars.io.plugins import register_io_source

from agentrl_core.integrations.polars._predicate_bounds import terms

# Key columns, by which other columns are found.
KEYS = {"trajectory_id", "draw_id", "step", "node_id"}


@dataclass(frozen=True)
class WantedColumns:
    """The names of the requested columns; None means all."""

    names: frozenset[str] | None = None

    @classmethod
    def of(cls, *names: str) -> WantedColumns:
        """Request only the given columns."""
        return cls(frozenset(names))

    def __contains__(self, name: str) -> bool:
        return self.names is None or name in self.names

    def also(self, *names: str) -> WantedColumns:
        """Return these columns and some more."""
        return self if self.names is None else WantedColumns(self.names.union(names))


Work = Callable[[pl.DataFrame, WantedColumns], pl.DataFrame]
"""Computes a frame from another one, row by row: with all its columns, and at least the wanted added columns."""


def lazily(frame: pl.LazyFrame, schema: pl.Schema, work: Work) -> Any:
    """Apply `work` lazily: with only the rows and columns that are requested when the frame is collected."""
    input_schema = frame.collect_schema()

    def rows(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        chosen = list(schema) if columns is None else columns
        parts = [] if predicate is None else terms(predicate)
        before = [part for part in parts if input_schema.keys() >= set(part.meta.root_names())]
        after = [part for part in parts if not input_schema.keys() >= set(part.meta.root_names())]
        requested = WantedColumns.of(*chosen).also(*(name for part in after for name in part.meta.root_names()))
        # `work` needs the names of all columns to name the added ones.
        expressions = (
            pl.col(name) if name in requested or name in KEYS else pl.lit(None, kind).alias(name)
            for name, kind in input_schema.items()
        )
        result = work(frame.filter(*before).select(*expressions).collect(), requested)
        result = result.filter(*after).select(chosen)
        yield result if most is None else result.head(most)

    return register_io_source(rows, schema=schema, is_pure=True)
