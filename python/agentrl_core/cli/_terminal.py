"""Helpers of the commands: open a run, fit columns to the terminal, format numbers."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.data.store import Store
from agentrl_core.exceptions import CorruptError, InvalidInputError, NotFoundError, StoreError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

_UNLIMITED = 100_000
ALL = (0, 2**62)
"""Bounds of all iterations."""
ROLLOUT_COLUMNS = """
  groups         groups that the iteration stored, drawn or not
  trajectories   trajectories that it stored, drawn or not
  left_out       those of its trajectories that no iteration drew: rejected, dropped, failed, or not yet drawn;
                 shown if there are any
  draws          uses of trajectories in its training batch, also of older ones
  success        mean success of its trajectories, if known
  reward         mean reward of its trajectories, if known"""
"""Columns of `rollout_counts`, for the help of commands."""


def informative(rows: pl.DataFrame) -> pl.DataFrame:
    """Drop columns of `statistics` that show nothing new: `drawn_*` equal to their column, `left_out` if it is 0."""
    equal = [name for name in rows.columns if name.startswith("drawn_") and _same(rows, name, name[len("drawn_") :])]
    return rows.drop(equal if (rows["left_out"] > 0).any() else [*equal, "left_out"])


def _same(rows: pl.DataFrame, one: str, other: str) -> bool:
    same: bool = rows[one].eq_missing(rows[other]).all()
    return same


@contextmanager
def opened(path: str) -> Iterator[Store]:
    """Open the store of a run for reading inside the block, without the writer's lock.

    Raises:
        NotFoundError: there is no run; the message lists runs in the folder.
        StoreError: the writer merged a file while it was read.
        CorruptError: a file is damaged, or Polars cannot read it.
    """
    try:
        store = Store.open(path, read_only=True)
    except NotFoundError:
        folder = Path(path)
        runs = [in_a_line(str(run_path)) for run_path in runs_in(path)]
        what = "is not a run" if folder.is_dir() else "does not exist"
        hint = f"; give one of the runs in it: {', '.join(runs[:10])}" if runs else "; give the directory of a run"
        raise NotFoundError(f"{in_a_line(path)} {what}{hint}") from None
    with store:
        try:
            yield store
        except FileNotFoundError as error:
            raise StoreError(f"the writer of {path} merged a file meanwhile; run the command again: {error}") from None
        except Exception as error:
            if not isinstance(error, CorruptError) and not type(error).__module__.startswith("polars"):
                raise
            reason = str(error).removesuffix("; run agentrl verify on the run")
            raise CorruptError(f"{path} cannot be read: {reason}; run agentrl verify {path}") from None


def runs_in(path: str) -> list[Path]:
    """Return the runs in a folder; none if it is a run itself."""
    folder = Path(path)
    return [] if (folder / "manifest").exists() else sorted(manifest.parent for manifest in folder.glob("*/manifest"))


def console() -> Console:
    """Return the console for results: as wide as the terminal or COLUMNS, unlimited in a pipe."""
    from rich.console import Console

    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if limited else _UNLIMITED, highlight=False)


def print_columns(
    out: Console, names: Sequence[str], rows: Sequence[Sequence[str]], *, wrap_texts: bool = False
) -> None:
    """Print rows as a table; a table wider than the console is split, or its texts are wrapped.

    Args:
        out: the console.
        names: of the columns.
        rows: the cells of each row.
        wrap_texts: wrap the texts of all columns but the first. False: columns that do not fit are printed below, in
            further tables, each with the first column.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    rows = [[in_a_line(cell) for cell in row] for row in rows]

    def width(index: int) -> int:
        return max(cell_len(name) for name in (names[index], *(row[index] for row in rows))) + 2

    parts: list[list[int]] = []
    for index in range(1, len(names)):
        if parts and (wrap_texts or width(0) + sum(map(width, parts[-1])) + width(index) <= out.width + 2):
            parts[-1].append(index)
        else:
            parts.append([index])
    for number, part in enumerate(parts):
        if number:
            out.print()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for index in (0, *part):
            numeric = all(row[index][:1].isdigit() or row[index][:1] in "+-" for row in rows if row[index])
            table.add_column(
                names[index], justify="right" if numeric else "left", overflow="fold", no_wrap=wrap_texts and index == 0
            )
        for row in rows:
            table.add_row(*(Text(row[index]) for index in (0, *part)))
        out.print(table)


def iteration_range(text: str | None) -> tuple[int, int]:
    """Parse `A:B`, or one number, as two bounds, the second excluded; None: all iterations."""
    if text is None:
        return ALL
    begin, colon, end = text.partition(":")
    try:
        bounds = (int(begin or ALL[0]), int(end or ALL[1])) if colon else (int(text), int(text) + 1)
    except ValueError:
        bounds = (0, 0)
    if not 0 <= bounds[0] < bounds[1]:
        raise InvalidInputError(
            f"--iterations is {text:.60}; give A:B with A below B, such as 3:10, 30: or :10, or one number"
        )
    return bounds


def number(value: Any, digits: int = 3) -> str:
    """Format a number: integers with separators, unknown numbers as a dash."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def nearest(wanted: int, ids: Sequence[int]) -> str:
    """Return the remedy of an error for a missing id: the nearest existing ids, or to wait if there are none."""
    close = sorted(sorted(ids, key=lambda candidate: abs(candidate - wanted))[:3])
    return f"give one of the nearest: {', '.join(map(str, close))}" if close else "wait until it has some"


def escaped(text: str) -> str:
    """Escape control characters in the text of a model or environment, for a terminal."""
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1] for character in text
    )


def in_a_line(text: str) -> str:
    """Escape a name for one line of a terminal."""
    return escaped(text).replace("\n", "\\n")
