"""`agentrl compare`: compare two runs per task and per iteration."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._curves import sparkline
from agentrl_core.cli._terminal import console, number, opened, print_columns
from agentrl_core.exceptions import NotFoundError
from agentrl_core.stats import paired_difference

if TYPE_CHECKING:
    import polars as pl

    from agentrl_core.integrations.polars.tables import Tables

_LEVEL = 0.05
_RESAMPLES = 10_000


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `RUN OTHER`."""
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
    """Print a table that compares two runs, and the paired difference of success on common tasks."""
    out = console()
    (numbers, tasks), (other_numbers, other_tasks) = _read(path), _read(other)
    rows, pairs = beside(numbers, other_numbers), paired(tasks, other_tasks)
    print_columns(out, ["", "first", "second", "difference", "by iteration"], rows)
    out.print()
    if len(pairs) == 0:
        out.print("no task was rolled out by both runs in the same iteration: no pairs")
        return 0
    difference = paired_difference(
        pairs["success_of_second"].to_numpy(), pairs["success"].to_numpy(), resamples=_RESAMPLES
    )
    verdict = "the second is better" if difference.mean > 0 else "the first is better"
    if difference.p_value > _LEVEL:
        verdict = "no difference is seen"
    out.print(
        f"{number(len(pairs))} tasks that both met in the same iteration: success {difference.mean:+.3f} "
        f"[{difference.low:+.3f}, {difference.high:+.3f}] (95 %, paired), p = {difference.p_value:.3g}, "
        f"{number(pairs['better'].sum())} better, {number(pairs['worse'].sum())} worse: {verdict}"
    )
    return 0


def beside(first: pl.DataFrame, second: pl.DataFrame) -> list[list[str]]:
    """Return a table row for each metric that both runs have: means, difference, and its curve by iteration.

    Raises:
        NotFoundError: they have no common iteration.
    """
    joined = first.join(second, on="iteration", suffix=" of second").sort("iteration")
    if joined.is_empty():
        ids = [run["iteration"] for run in (first, second)]
        spans = [f"{each.min()!r} to {each.max()!r}" if len(each) else "none" for each in ids]
        raise NotFoundError(
            f"the runs have no common iteration with draws (the first has {spans[0]}, the second {spans[1]}); "
            "compare runs that overlap"
        )
    rows = []
    for name in first.columns[1:]:
        other = f"{name} of second"
        difference = joined[other] - joined[name]
        means: tuple[Any, ...] = joined[name].mean(), joined[other].mean(), difference.mean()
        rows.append([name, *map(number, means), sparkline(difference.to_list())])
    return rows


def _read(path: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the numbers of a run by iteration, and its success rate on each task in each iteration."""
    from agentrl_core.integrations.polars import scan
    from agentrl_core.view.iteration_statistics import statistics

    with opened(path) as store:
        tables = scan(store)
        return statistics(tables), solved(tables)


def solved(tables: Tables) -> pl.DataFrame:
    """Return the share of members that solved each task in each iteration."""
    import polars as pl

    members = tables.trajectories.filter(pl.col("role") == "member")
    rates: pl.DataFrame = members.group_by("iteration", "task_id").agg(pl.col("success").mean()).collect()
    return rates


def paired(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Return the difference of success rates for each task that both runs rolled out in the same iteration."""
    import polars as pl

    pairs = (
        first.join(second, on=["iteration", "task_id"], suffix="_of_second").drop_nulls().sort("iteration", "task_id")
    )
    difference = pl.col("success_of_second") - pl.col("success")
    return pairs.with_columns(difference=difference, better=difference > 0, worse=difference < 0)
