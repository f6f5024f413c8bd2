"""`agentrl watch`: monitor a run in the terminal."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._curves import curves
from agentrl_core.cli._terminal import console, in_a_line, number, opened
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.data.store import Store

_LEVELS = {"good": "", "watch": "yellow", "bad": "bold red"}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `RUN --seconds S --once`."""
    command.description = (
        "Monitor a run while it is written: its health, and a curve of each number over the iterations. Ctrl-C ends it "
        "without affecting the run. In a pipe, or with --once, it prints once."
    )
    command.epilog = "examples:\n  agentrl watch runs/demo\n  agentrl watch runs/demo --seconds 30"
    command.add_argument("path", metavar="RUN", help="directory of the run")
    command.add_argument("--seconds", type=float, default=5.0, metavar="S", help="between two refreshes (default: 5)")
    command.add_argument("--once", action="store_true", help="show it once")


def run(path: str, seconds: float, once: bool) -> int:  # noqa: FBT001  # an option of the command line
    """Show a run, and refresh the display until interrupted."""
    if not seconds > 0:
        raise InvalidInputError(f"--seconds is {seconds:g}; give a positive number")
    out = console()
    with opened(path) as store:
        if once or not out.is_terminal:
            out.print(looked(store, out.width))
            return 0
        from rich.live import Live

        with Live(looked(store, out.width), console=out, auto_refresh=False, screen=True) as display:
            while True:
                time.sleep(seconds)
                store.refresh()
                display.update(looked(store, out.width), refresh=True)


def looked(store: Store, width: int) -> Any:
    """Return the display of a run's current state, for one refresh."""
    import polars as pl
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from agentrl_core.integrations.polars import scan
    from agentrl_core.view.blocks import Chosen
    from agentrl_core.view.groups import of_groups
    from agentrl_core.view.health import signs
    from agentrl_core.view.iteration_statistics import statistics

    tables = scan(store)
    rows = statistics(tables)
    groups = of_groups(tables, Chosen.of(tables, (0, 2**62), 1))
    health = Text()
    for sign in signs(tables, rows, groups):
        health.append(f"{sign.value} {sign.name}   ", style=_LEVELS[sign.level])
    measured = pl.DataFrame(store.metrics).sort("name", "iteration")
    if len(measured):
        metrics = measured.pivot("name", index="iteration", values="value")
        rows = rows.join(metrics.select("iteration", pl.exclude(rows.columns)), on="iteration", how="left")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for name, line, first, last in curves(rows, max(8, min(64, width - 48))):
        table.add_row(Text(in_a_line(name)), Text(line, style="cyan"), Text(f"{first} → {last}"))
    head = f"{in_a_line(store.path)}: {number(store.iteration)} iterations closed, {number(len(groups))} groups"
    return Group(Text(head, style="bold"), health, Text(), table)
