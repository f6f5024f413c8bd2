"""`agentrl ls`: list the contents of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._curves import sparkline
from agentrl_core.cli._terminal import (
    ROLLOUT_COLUMNS,
    console,
    informative,
    nearest,
    number,
    opened,
    print_columns,
    runs_in,
)
from agentrl_core.exceptions import NotFoundError
from agentrl_core.view.iteration_statistics import rollout_counts

if TYPE_CHECKING:
    from rich.console import Console

    from agentrl_core.data.store import Store
    from agentrl_core.integrations.polars.tables import Tables


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `RUN --iteration N`."""
    command.description = (
        "List the iterations of a run with their rollouts, the trajectories of one iteration, or the runs of a folder. "
        "Works while the run is written."
    )
    command.epilog = (
        "examples:\n  agentrl ls runs/demo\n  agentrl ls runs/demo --iteration 3\n  agentrl ls runs\n\n"
        f"columns:{ROLLOUT_COLUMNS}\n"
        "  generated      tokens of its actions, a shared prefix once; with windows, a trajectory that\n"
        "                 goes on is stored again with its earlier tokens\n"
        "  length         tokens of a trajectory, including prompt, observations and shared prefixes"
    )
    command.add_argument("path", metavar="RUN", help="directory of the run, or a folder of runs")
    command.add_argument("--iteration", type=int, metavar="N", help="list the trajectories of this iteration")


def run(path: str, iteration: int | None) -> int:
    """Print the runs of a folder, the iterations of a run, or the trajectories of an iteration."""
    out = console()
    from agentrl_core.integrations.polars import scan

    if iteration is None and (runs := runs_in(path)):
        _runs(out, runs)
        return 0
    with opened(path) as store:
        tables = scan(store)
        if iteration is None:
            _iterations(out, store, tables)
        else:
            _trajectories(out, tables, iteration)
    return 0


def _runs(out: Console, paths: list[Path]) -> None:
    """Print one line per run of a folder, the last written one at the end."""
    from agentrl_core.integrations.polars import scan

    rows = []
    for path in sorted(paths, key=lambda each: each.joinpath("manifest").stat().st_mtime):
        with opened(str(path)) as store:
            success = rollout_counts(scan(store))["success"].to_list()
            recipe = (store.state.get("run") or {}).get("recipe") or {}
            rows.append(
                [
                    path.name,
                    str(recipe.get("name", "-")),
                    number(store.iteration),
                    number(success[0] if success else None),
                    number(success[-1] if success else None),
                    sparkline(success),
                ]
            )
    print_columns(out, ["run", "recipe", "iterations", "first", "last", "success"], rows)


def _iterations(out: Console, store: Store, tables: Tables) -> None:
    import polars as pl

    from agentrl_core.data.table_codes import CODES

    trajectories = tables.trajectories.select("group_id", "iteration", "status").collect()
    groups = trajectories.group_by("group_id").agg(pl.col("iteration").min()).lazy()
    tokens = (
        tables.nodes.filter(pl.col("kind") == "action")
        .select("group_id", pl.col("tokens").list.len().cast(pl.Int64))
        .join(groups, on="group_id")
        .group_by("iteration")
        .agg(generated=pl.col("tokens").sum())
        .collect()
    )
    statuses = [name for name in CODES["status"] if (trajectories["status"] == name).any()]
    ended = trajectories.group_by("iteration").agg((pl.col("status") == name).sum().alias(name) for name in statuses)
    rows = (
        informative(rollout_counts(tables))
        .join(tokens, on="iteration", how="left")
        .join(ended, on="iteration", how="left")
    )
    rows = rows.with_columns(pl.col("generated", *statuses).fill_null(0)).sort("iteration")
    print_columns(out, rows.columns, [[number(value) for value in row] for row in rows.rows()])
    out.print(
        f"{number(store.iteration)} iterations closed, {number(rows['groups'].sum())} groups, "
        f"{number(len(trajectories))} trajectories, {number(rows['generated'].sum())} tokens generated, "
        f"commit {number(store.version)}"
    )


def _trajectories(out: Console, tables: Tables, iteration: int) -> None:
    import polars as pl

    rows = tables.trajectories.filter(pl.col("iteration") == iteration)
    steps = tables.steps.group_by("trajectory_id").agg(turns=pl.len())
    draws = tables.draws.group_by("trajectory_id").agg(draws=pl.len())
    joined = rows.join(steps, on="trajectory_id", how="left").join(draws, on="trajectory_id", how="left")
    joined = joined.sort("group_id", "trajectory_id").with_columns(pl.col("turns", "draws").fill_null(0))
    collected: Any = joined.collect()
    frame = collected.agentrl.paths(tables).with_columns(length=pl.col("tokens").list.len())
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
