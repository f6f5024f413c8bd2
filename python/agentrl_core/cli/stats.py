"""`agentrl stats`: print training statistics per iteration."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

from agentrl_core.cli._curves import curves
from agentrl_core.cli._terminal import ROLLOUT_COLUMNS, console, informative, number, opened, print_columns
from agentrl_core.view.iteration_statistics import statistics

if TYPE_CHECKING:
    import polars as pl

    from agentrl_core.data.store import Store
    from agentrl_core.integrations.polars.tables import Tables

_COLUMNS = f"""{ROLLOUT_COLUMNS}
  drawn_groups   groups of the training batch
  drawn_success  mean success of a draw, if known
  drawn_reward   mean reward of a draw; these three are shown if they differ from those of all trajectories
  same_reward    share of the drawn groups with equal scores, without a learning signal
  entropy        mean entropy of a generated token, in nats
  turns          mean number of turns of a draw
  action_length  mean number of tokens in the actions of a draw
  length         mean number of tokens of a draw, including prompt and observations
  sharing        tokens of the draws over stored tokens: 2 if each is used twice
  staleness      mean age of the weights that generated a token, in updates, if known
  tool_errors    share of tool calls that failed
  success@d      mean success of the iteration's trajectories of domain d, drawn or not
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `RUN`."""
    command.description = (
        "Print statistics of each iteration: of its rollouts, and of its training batch. Works while the run is "
        "written."
    )
    command.epilog = f"examples:\n  agentrl stats runs/demo\n  agentrl stats runs/demo | tail -5\n\ncolumns:{_COLUMNS}"
    command.add_argument("path", metavar="RUN", help="directory of the run")


def run(path: str) -> int:
    """Print the statistics of a run by iteration."""
    out = console()
    from agentrl_core.integrations.polars import scan

    with opened(path) as store:
        tables = scan(store)
        rows = informative(statistics(tables)).join(_by_domain(store), on="iteration", how="left")
        print_columns(out, rows.columns, [[number(value) for value in row] for row in rows.rows()])
        out.print()
        print_columns(out, ["curve", "over the iterations", "first", "last"], curves(rows))
        out.print(_bytes(store, tables))
    return 0


def _by_domain(store: Store) -> pl.DataFrame:
    """Return the success in each domain, one row per closed iteration."""
    import polars as pl

    metrics = pl.DataFrame(store.metrics).filter(pl.col("name").str.starts_with("success@")).sort("name", "iteration")
    return metrics.pivot("name", index="iteration", values="value")


def _bytes(store: Store, tables: Tables) -> str:
    """Return the bytes on disk per stored token."""
    import polars as pl

    tokens = tables.nodes.select(pl.col("tokens").list.len().cast(pl.Int64).sum()).collect().item()
    sizes = {field.name: sum(file.stat().st_size for file, *_ in store.files(field.name)) for field in fields(tables)}
    each = [number(size / tokens if tokens else None, 1) for size in (sizes["nodes"], sum(sizes.values()))]
    return f"{number(tokens)} tokens stored; bytes per token on disk: {each[0]} in nodes, {each[1]} in all tables"
