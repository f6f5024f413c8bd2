"""`agentrl stats`: how training went, iteration by iteration."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from agentrl_core import env
from agentrl_core.cli._view import console, number, opened, print_columns

if TYPE_CHECKING:
    import polars as pl

    from agentrl_core.data.store import Store
    from agentrl_core.integrations.polars import Tables

_DRAWS_AT_ONCE = 16_384
_COLUMNS = """
  success      share of draws whose task was solved, of those that were judged
  reward       mean reward of a draw
  same_reward  share of groups whose draws all have the same score: they teach nothing
  entropy      mean entropy of a generated token, in nats
  turns        mean number of turns of a draw
  generated    mean number of tokens that the policy generated in a draw
  length       mean number of tokens of a draw, prompt and observations included
  sharing      tokens of the draws over tokens stored for them: 2 where each is used twice
  staleness    how many updates old the weights were that generated a token, on average
  tool_errors  share of tool calls that failed
  success@d    share of the iteration's trajectories of domain d that solved their task, drawn or not
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """`RUN`."""
    command.description = "Statistics of the training batch of each iteration. Works while the run is written."
    command.epilog = f"examples:\n  agentrl stats runs/demo\n  agentrl stats runs/demo | tail -5\n\ncolumns:{_COLUMNS}"
    command.add_argument("path", metavar="RUN", help="directory of the run")


def run(path: str) -> int:
    """Print the table."""
    out = console()
    from agentrl_core.integrations.polars import scan

    with opened(path) as store:
        tables = scan(store)
        rows = statistics(tables).join(_by_domain(store), on="iteration", how="left")
        print_columns(out, rows.columns, [[number(value) for value in row] for row in rows.rows()])
        out.print(_bytes(store, tables))
    return 0


def statistics(tables: Tables) -> pl.DataFrame:
    """The columns that the help explains, a row for each iteration that has draws."""
    import polars as pl

    draws: Any = tables.draws.sort("draw_id").collect()
    # Iterations are taken together up to a number of draws, so that memory stays bounded.
    sizes = draws.group_by("iteration").len().sort("iteration")
    chunk = (sizes["len"].cum_sum() - sizes["len"]) // _DRAWS_AT_ONCE
    made = [
        _of_draws(draws.filter(pl.col("iteration").is_in(part["iteration"].implode())), tables)
        for part in sizes.with_columns(chunk=chunk).partition_by("chunk", maintain_order=True)
    ]
    return pl.concat(made or [_of_draws(draws, tables)]).sort("iteration")


def _by_domain(store: Store) -> pl.DataFrame:
    """What the metrics say of each domain, a row for each iteration that was closed."""
    import polars as pl

    said = pl.DataFrame(store.metrics).filter(pl.col("name").str.starts_with("success@")).sort("name", "iteration")
    return said.pivot("name", index="iteration", values="value")


def _of_draws(draws: Any, tables: Tables) -> pl.DataFrame:
    import polars as pl

    # The score is what the advantage was made of; before it is computed, the reward stands for it.
    drawn = draws.agentrl.trajectories(tables).agentrl.computed(tables)
    score = pl.col("score") if "score" in drawn.columns else pl.col("reward")
    groups = drawn.group_by("iteration", "group_id").agg(same=score.n_unique() == 1)
    steps = draws.lazy().join(tables.steps, on="trajectory_id").group_by("iteration")
    called = pl.col("flags") & env.TOOL_RESULT != 0
    failed = pl.col("flags") & env.TOOL_ERROR != 0
    wanted = ("node_id", "parent_id", "parent_end", "group_id", "kind", "tokens", "entropies", "policy_version")
    small = replace(tables, nodes=tables.nodes.select(*wanted))
    nodes = draws.select("iteration", "draw_id", "trajectory_id").agentrl.nodes(small)
    generated = pl.col("policy_version").is_not_null()
    per_draw = nodes.group_by("iteration", "draw_id").agg(
        length=pl.col("end").sum(),
        generated=pl.col("end").filter(generated).sum(),
        age=((pl.col("iteration") - pl.col("policy_version")) * pl.col("end")).sum(),
    )
    stored = nodes.unique(["iteration", "node_id"])
    per_iteration = (
        drawn.group_by("iteration").agg(
            draws=pl.len(), success=pl.col("success").mean(), reward=pl.col("reward").mean()
        ),
        groups.group_by("iteration").agg(groups=pl.len(), same_reward=pl.col("same").mean()),
        stored.group_by("iteration").agg(
            entropy=pl.col("entropies").list.explode().mean(), stored=pl.col("tokens").list.len().sum()
        ),
        steps.agg(turns=pl.len(), tool_errors=failed.sum() / called.sum()).collect(),
        per_draw.group_by("iteration").agg(pl.col("length", "generated", "age").sum()),
    )
    found: pl.DataFrame = per_iteration[0]
    for other in per_iteration[1:]:
        found = found.join(other, on="iteration", how="left")
    return found.select(
        "iteration",
        "draws",
        "groups",
        "success",
        "reward",
        "same_reward",
        "entropy",
        turns=pl.col("turns").fill_null(0) / pl.col("draws"),
        generated=pl.col("generated") / pl.col("draws"),
        length=pl.col("length") / pl.col("draws"),
        sharing=pl.col("length") / pl.col("stored"),
        staleness=pl.col("age") / pl.col("generated"),
        tool_errors="tool_errors",
    )


def _bytes(store: Store, tables: Tables) -> str:
    """Size on disk over the number of stored tokens."""
    import polars as pl

    tokens = tables.nodes.select(pl.col("tokens").list.len().cast(pl.Int64).sum()).collect().item()
    sizes = {field.name: sum(file.stat().st_size for file, _ in store.files(field.name)) for field in fields(tables)}
    each = [number(size / tokens if tokens else None, 1) for size in (sizes["nodes"], sum(sizes.values()))]
    return f"{number(tokens)} tokens stored; bytes per token on disk: {each[0]} in nodes, {each[1]} in all tables"
