"""`agentrl ls`: what is in a run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._view import console, nearest, number, opened, print_columns
from agentrl_core.exceptions import NotFoundError

if TYPE_CHECKING:
    from rich.console import Console

    from agentrl_core.data.store import Store
    from agentrl_core.integrations.polars import Tables


def add_arguments(command: argparse.ArgumentParser) -> None:
    """`RUN --iteration N`."""
    command.description = (
        "List the iterations of a run with what was rolled out in each, or the trajectories of one iteration. "
        "Works while the run is written."
    )
    command.epilog = (
        "examples:\n  agentrl ls runs/demo\n  agentrl ls runs/demo --iteration 3\n\n"
        "columns:\n"
        "  generated  tokens that the policy generated, each counted once\n"
        "  length     tokens of a trajectory, prompt, observations and what it shares with others included"
    )
    command.add_argument("path", metavar="RUN", help="directory of the run")
    command.add_argument("--iteration", type=int, metavar="N", help="list the trajectories of this iteration")


def run(path: str, iteration: int | None) -> int:
    """Print the list."""
    out = console()
    from agentrl_core.integrations.polars import scan

    with opened(path) as store:
        tables = scan(store)
        if iteration is None:
            _iterations(out, store, tables)
        else:
            _trajectories(out, tables, iteration)
    return 0


def _iterations(out: Console, store: Store, tables: Tables) -> None:
    import polars as pl

    from agentrl_core.data.codes import ACTION, CODES

    trajectories = tables.trajectories.select("group_id", "iteration", "success", "reward", "status").collect()
    groups = trajectories.select("group_id", "iteration").unique("group_id").lazy()
    tokens = (
        tables.nodes.filter(pl.col("kind") == ACTION)
        .select("group_id", pl.col("tokens").list.len())
        .join(groups, on="group_id")
        .group_by("iteration")
        .agg(generated=pl.col("tokens").cast(pl.Int64).sum())
    )
    statuses = [code for code in range(len(CODES["status"])) if (trajectories["status"] == code).any()]
    rows = (
        trajectories.lazy()
        .group_by("iteration")
        .agg(
            pl.col("group_id").n_unique().alias("groups"),
            pl.len().alias("trajectories"),
            pl.col("success").mean(),
            pl.col("reward").mean(),
            *((pl.col("status") == code).sum().alias(CODES["status"][code]) for code in statuses),
        )
        .join(tables.draws.group_by("iteration").agg(draws=pl.len()), on="iteration", how="left")
        .join(tokens, on="iteration", how="left")
        .sort("iteration")
        .collect()
    )
    names = ["iteration", "groups", "trajectories", "draws", "success", "reward", "generated"]
    names += [CODES["status"][code] for code in statuses]
    shown = rows.with_columns(pl.col("draws", "generated").fill_null(0)).select(names)
    print_columns(out, names, [[number(value) for value in row] for row in shown.rows()])
    out.print(
        f"{number(store.iteration)} iterations closed, {number(rows['groups'].sum())} groups, "
        f"{number(len(trajectories))} trajectories, {number(rows['generated'].sum())} tokens generated, "
        f"commit {number(store.version)}"
    )


def _trajectories(out: Console, tables: Tables, iteration: int) -> None:
    import polars as pl

    rows = tables.trajectories.filter(pl.col("iteration") == iteration)
    steps = tables.steps.group_by("trajectory_id").agg(turns=pl.len())
    drawn = tables.draws.group_by("trajectory_id").agg(draws=pl.len())
    found = rows.join(steps, on="trajectory_id", how="left").join(drawn, on="trajectory_id", how="left")
    found = found.sort("group_id", "trajectory_id").with_columns(pl.col("turns", "draws").fill_null(0))
    named: Any = found.collect()
    frame = named.agentrl.words().agentrl.paths(tables).with_columns(length=pl.col("tokens").list.len())
    if frame.is_empty():
        iterations = tables.trajectories.select(pl.col("iteration").unique()).collect()["iteration"].to_list()
        raise NotFoundError(f"the run has no trajectories of iteration {iteration}; {nearest(iteration, iterations)}")
    names = ["trajectory", "group", "task", "status", "reward", "success", "turns", "length", "draws", "branch of"]
    print_columns(
        out,
        names,
        [
            [
                str(row["trajectory_id"]),
                str(row["group_id"]),
                row["task_id"],
                row["status"],
                number(row["reward"]),
                "-" if row["success"] is None else ("yes" if row["success"] else "no"),
                number(row["turns"]),
                number(row["length"]),
                number(row["draws"]),
                "" if row["parent_trajectory"] is None else str(row["parent_trajectory"]),
            ]
            for row in frame.rows(named=True)
        ],
    )
