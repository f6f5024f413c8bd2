"""`agentrl export`: write training rows or a table as one file of another format."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from agentrl_core._util.files import new_file
from agentrl_core.cli._terminal import ALL, in_a_line, iteration_range, opened
from agentrl_core.exceptions import InvalidInputError, StoreError

if TYPE_CHECKING:
    import polars as pl

    from agentrl_core.integrations.polars.tables import Tables

    _Parts = Sequence[Callable[[], pl.DataFrame]]

_DRAWS_AT_ONCE = 4096
_FORMATS = ("parquet", "jsonl")
# How rows of a table refer to an iteration: by a column, or by a key of a table with that column.
_KEYS = {
    "nodes": ("group_id", "trajectories"),
    "steps": ("trajectory_id", "trajectories"),
    "draw_columns": ("draw_id", "draws"),
    "step_columns": ("draw_id", "draws"),
    "node_columns": ("node_id", "nodes"),
}
_TABLES = ("trajectories", "draws", "decisions", "tasks", "metrics", *_KEYS)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `RUN --to FILE --format FORMAT --table TABLE --iterations A:B`."""
    command.description = (
        "Write training rows, or a table of the run, as one Parquet or JSONL file. Training rows: one for each token "
        "sequence that a draw trained, with its tokens, loss mask, log-probs, rewards and computed columns. The file "
        "appears when complete; an existing file is never overwritten."
    )
    command.epilog = (
        "examples:\n  agentrl export runs/demo --to rows.parquet\n"
        "  agentrl export runs/demo --to last.jsonl --iterations 30:\n"
        "  agentrl export runs/demo --to nodes.parquet --table nodes\n"
        "  agentrl export runs/demo --to chats.jsonl --table chats"
    )
    command.add_argument("path", metavar="RUN", help="directory of the run")
    command.add_argument("--to", required=True, metavar="FILE", help="the file to write")
    command.add_argument(
        "--format",
        choices=_FORMATS,
        metavar="FORMAT",
        help="parquet or jsonl (default: the ending of FILE)",
    )
    command.add_argument(
        "--table",
        choices=("rows", "chats", *_TABLES),
        default="rows",
        metavar="TABLE",
        help="rows (training rows, the default), chats (each rollout as messages, for fine-tuning), or one of "
        + ", ".join(_TABLES),
    )
    command.add_argument(
        "--iterations",
        metavar="A:B",
        help="iterations from A up to, but not including, B; both are optional (default: all)",
    )


def run(path: str, to: str, format: str | None, table: str, iterations: str | None) -> int:  # noqa: A002
    """Write the requested rows of a run to a file."""
    import polars as pl
    import polars.selectors as cs
    from rich.console import Console
    from rich.progress import track

    from agentrl_core.integrations.polars import scan

    target = Path(to)
    form = format or target.suffix.removeprefix(".")
    if form not in _FORMATS:
        raise InvalidInputError(
            f"--to {to}: the name does not end with .parquet or .jsonl; end it so, or give --format parquet or jsonl"
        )
    bounds = iteration_range(iterations)
    if bounds != ALL and table == "tasks":
        raise InvalidInputError(f"--iterations is {iterations}, but table tasks has no iterations; omit --iterations")
    reading = Lock()
    with opened(path) as store:
        tables = scan(store)
        if table in ("rows", "chats"):
            parts, schema = _rows(tables, bounds) if table == "rows" else _chats(path, tables, bounds)
            console = Console(stderr=True)
            shown_parts = track(parts, f"rows of {path}", console=console, disable=not console.is_terminal)
            frame = _streamed(shown_parts, schema, reading)
        else:
            frame = _table(tables, table, bounds)
        with _whole(target) as half, _waiting(reading):
            if form == "parquet":
                frame.sink_parquet(half)
            else:
                # JSON has no bytes, so hashes become hex text, and no NaN, which Polars writes as null.
                blobs = pl.element().bin.encode("hex")
                hexadecimal = (
                    cs.by_dtype(pl.Binary).bin.encode("hex"),
                    cs.by_dtype(pl.List(pl.Binary)).list.eval(blobs),
                )
                with half.open("wb") as file:  # Polars checks the ending of a path
                    frame.with_columns(*hexadecimal).sink_ndjson(file)
    print(f"{in_a_line(to)}: {target.stat().st_size:,} bytes", file=sys.stderr)
    return 0


def _rows(tables: Tables, bounds: tuple[int, int]) -> tuple[_Parts, pl.Schema]:
    """Return functions that each read the training rows of some draws, and the schema of the rows."""
    import polars as pl

    draws = tables.draws.filter(pl.col("iteration").is_between(*bounds, closed="left")).sort("draw_id").collect()
    facts = tables.trajectories.select("trajectory_id", "task_id", "reward", "success")

    def rows(part: Any, of: Tables) -> pl.DataFrame:
        part = part.select("iteration", "draw_id", "trajectory_id", "group_id", "source").lazy()
        part = part.join(facts, on="trajectory_id", how="left", maintain_order="left").collect()
        frame: pl.DataFrame = part.agentrl.words().agentrl.sequences(of)
        return frame

    schema = rows(draws.clear(), tables).schema
    parts = [draws[begin : begin + _DRAWS_AT_ONCE] for begin in range(0, len(draws), _DRAWS_AT_ONCE)]
    return [partial(rows, part, tables) for part in parts], schema


def _chats(path: str, tables: Tables, bounds: tuple[int, int]) -> tuple[_Parts, pl.Schema]:
    """Return functions that each read some rollouts as rows with messages, and the schema of the rows."""
    import polars as pl

    within = pl.col("iteration").is_between(*bounds, closed="left") & (pl.col("role") == "member")
    rollouts = tables.trajectories.filter(within).sort("trajectory_id")
    columns = ("iteration", "trajectory_id", "group_id", "task_id", "status", "reward", "success")
    members: Any = rollouts.select(*columns).collect()

    def rows(part: Any) -> pl.DataFrame:
        frame: pl.DataFrame = part.agentrl.chats(tables, path)
        return frame

    schema = rows(members.clear()).schema
    parts = [members[begin : begin + _DRAWS_AT_ONCE] for begin in range(0, len(members), _DRAWS_AT_ONCE)]
    return [partial(rows, part) for part in parts], schema


def _table(tables: Tables, table: str, bounds: tuple[int, int]) -> pl.LazyFrame:
    """Return the rows of a table that belong to some iterations, as a lazy frame."""
    import polars as pl

    frame: pl.LazyFrame = getattr(tables, table)
    if bounds == ALL:
        return frame
    inside = pl.col("iteration").is_between(*bounds, closed="left")
    if table not in _KEYS:
        return frame.filter(inside)
    key, of = _KEYS[table]
    owners = tables.draws if of == "draws" else tables.trajectories
    owners = owners.filter(inside)
    if of == "nodes":
        owners = tables.nodes.join(owners, on="group_id", how="semi")
    keys = owners.select(pl.col(key).unique()).collect()
    return frame.join(keys.lazy(), on=key, how="semi", maintain_order="left")


@contextmanager
def _waiting(reading: Lock) -> Iterator[None]:
    """On an interrupt, wait for the Polars thread that reads a part, since Python cannot exit before it."""
    try:
        yield
    except KeyboardInterrupt:
        with reading:
            raise


def _streamed(parts: Iterable[Callable[[], pl.DataFrame]], schema: pl.Schema, reading: Lock) -> pl.LazyFrame:
    """Return the parts as one lazy frame that is never in memory as a whole."""
    from polars.io.plugins import register_io_source

    def source(columns: list[str] | None, _: object, __: int | None, ___: int | None) -> Iterator[pl.DataFrame]:
        for part in parts:
            with reading:
                frame = part()
            yield frame if columns is None else frame.select(columns)

    return register_io_source(source, schema=schema)


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Create a file that gets its name only when it is complete; yields the path of its descriptor.

    Raises:
        InvalidInputError: the file exists, or its folder does not.
        StoreError: the file cannot be written.
    """
    from polars.exceptions import PolarsError

    if target.exists():
        raise InvalidInputError(f"--to {target} exists and is never overwritten; remove it, or give another name")
    if not target.parent.is_dir():
        raise InvalidInputError(f"--to {target}: folder {target.parent} does not exist; create it first")
    try:
        with new_file(target) as file:
            # Polars opens the file again. A name in the folder could refer to another file by then.
            yield Path(f"/dev/fd/{file.fileno()}")
    except (OSError, PolarsError) as error:
        raise StoreError(f"{target} cannot be written: {error}; check the folder and its free space") from error
    except KeyboardInterrupt:
        # Polars and Python report the same interrupt: the second report must not stop the cleanup.
        with suppress(KeyboardInterrupt):
            time.sleep(0.05)
        raise
