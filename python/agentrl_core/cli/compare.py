"""`agentrl compare`: compare two runs per task and per iteration."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._curves import sparkline
from agentrl_core.cli._view import console, number, opened, print_columns
from agentrl_core.exceptions import NotFoundError

if TYPE_CHECKING:
    import polars as pl

    from agentrl_core.integrations.polars import Tables

_Z95 = 1.96


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add `RUN OTHER`."""
    command.description = (
        "Compare two runs: each number over their common iterations, and paired success rates on tasks that both "
        "rolled out in the same iteration, so that a hard task counts against both."
    )
    command.epilog = (
        "examples:\n  agentrl compare runs/demo runs/other\n\n"
        "columns:\n"
        "  first, second  mean over common iterations\n"
        "  difference     second minus first, of the means\n"
        "  by iteration   the difference, from the first iteration to the last"
    )
    command.add_argument("path", metavar="RUN", help="directory of the first run")
    command.add_argument("other", metavar="OTHER", help="directory of the second run")


def run(path: str, other: str) -> int:
    """Print the table and the pairs."""
    out = console()
    (numbers, tasks), (other_numbers, other_tasks) = _read(path), _read(other)
    rows, pairs = beside(numbers, other_numbers), paired(tasks, other_tasks)
    print_columns(out, ["", "first", "second", "difference", "by iteration"], rows)
    out.print()
    if len(pairs) == 0:
        out.print("no task was rolled out by both runs in the same iteration: no pairs")
        return 0
    mean, half = interval(pairs["difference"].to_list())
    verdict = (
        "no difference is seen" if abs(mean) <= half else "the second is better" if mean > 0 else "the first is better"
    )
    spread = f" ± {number(half)}" if math.isfinite(half) else ""
    out.print(
        f"{number(len(pairs))} tasks that both rolled out in the same iteration: success {mean:+.3f}{spread} "
        f"(95 %, paired), {number(pairs['better'].sum())} better, {number(pairs['worse'].sum())} worse: {verdict}"
    )
    return 0


def beside(first: pl.DataFrame, second: pl.DataFrame) -> list[list[str]]:
    """Return one row per number that both runs have.

    Raises:
        NotFoundError: they have no common iteration.
    """
    both = first.join(second, on="iteration", suffix=" of second").sort("iteration")
    if both.is_empty():
        raise NotFoundError("the runs have no common iteration with draws; compare runs that overlap")
    made = []
    for name in first.columns[1:]:
        other = f"{name} of second"
        difference = both[other] - both[name]
        means: tuple[Any, ...] = both[name].mean(), both[other].mean(), difference.mean()
        made.append([name, *map(number, means), sparkline(difference.to_list())])
    return made


def _read(path: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the numbers of a run by iteration, and its success rate on each task."""
    from agentrl_core.integrations.polars import scan
    from agentrl_core.view.statistics import statistics

    with opened(path) as store:
        tables = scan(store)
        return statistics(tables), solved(tables)


def solved(tables: Tables) -> pl.DataFrame:
    """Return the share of members that solved each task in each iteration."""
    import polars as pl

    members = tables.trajectories.filter(pl.col("role") == "member")
    found: pl.DataFrame = members.group_by("iteration", "task_id").agg(pl.col("success").mean()).collect()
    return found


def paired(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Return the difference of success rates for each task that both runs rolled out in the same iteration."""
    import polars as pl

    both = (
        first.join(second, on=["iteration", "task_id"], suffix="_of_second").drop_nulls().sort("iteration", "task_id")
    )
    difference = pl.col("success_of_second") - pl.col("success")
    return both.with_columns(difference=difference, better=difference > 0, worse=difference < 0)


def interval(differences: list[float]) -> tuple[float, float]:
    """Return the mean of differences and half of its 95 % interval: 1.96 standard errors; infinite for one.

    Example:
        >>> from agentrl_core.cli.compare import interval
        >>> mean, half = interval([1.0, 0.0, 1.0, 0.0])         # std 0.5774, over sqrt(4): 0.2887; times 1.96
        >>> mean, round(half, 4)
        (0.5, 0.5658)
    """
    count = len(differences)
    mean = sum(differences) / count
    if count == 1:
        return mean, math.inf
    variance = sum((value - mean) ** 2 for value in differences) / (count - 1)
    return mean, _Z95 * math.sqrt(variance / count)
