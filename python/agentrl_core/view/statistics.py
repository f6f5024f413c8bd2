"""How training went, iteration by iteration: a row of numbers for each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl_core import env

if TYPE_CHECKING:
    import polars as pl

    from agentrl_core.integrations.polars import Tables

_DRAWS_AT_ONCE = 16_384


def statistics(tables: Tables) -> pl.DataFrame:
    """The columns that `agentrl stats --help` explains, a row for each iteration that has draws."""
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


def _of_draws(draws: Any, tables: Tables) -> pl.DataFrame:
    import polars as pl

    # Of each file what these draws have: all chunks together read a run about once.
    own = _among(draws["trajectory_id"])
    tables = replace(
        tables,
        trajectories=tables.trajectories.filter(own),
        steps=tables.steps.filter(own),
        draw_columns=tables.draw_columns.filter(_among(draws["draw_id"])),
        tasks=tables.tasks.clear(),
    )
    # The score is what the advantage was made of; before it is computed, the reward stands for it.
    drawn = draws.agentrl.trajectories(tables).agentrl.computed(tables)
    score = pl.col("score") if "score" in drawn.columns else pl.col("reward")
    groups = drawn.group_by("iteration", "group_id").agg(same=score.n_unique() == 1)
    steps = draws.lazy().join(tables.steps, on="trajectory_id").group_by("iteration")
    called = pl.col("flags") & env.TOOL_RESULT != 0
    failed = pl.col("flags") & env.TOOL_ERROR != 0
    keys = draws.lazy().select("iteration", "draw_id", "trajectory_id")
    # The lists of a node are read once, and only their numbers go to each of its paths.
    known = pl.col("entropies").cast(pl.List(pl.Float64)).list.drop_nulls()
    length = pl.col("tokens").list.len().cast(pl.Int64)
    counted = tables.nodes.with_columns(stored=length, entropy=known.list.sum(), entropies=known.list.len())
    columns = ("iteration", "draw_id", "node_id", "end", "kind", "policy_version", "stored", "entropy", "entropies")
    nodes = keys.agentrl.nodes(replace(tables, nodes=counted)).select(columns).collect()
    generated, versioned = pl.col("kind") == "action", pl.col("policy_version").is_not_null()
    per_draw = nodes.group_by("iteration", "draw_id").agg(
        length=pl.col("end").sum(),
        generated=pl.col("end").filter(generated).sum(),
        versioned=pl.col("end").filter(versioned).sum(),
        age=((pl.col("iteration") - pl.col("policy_version")) * pl.col("end")).sum(),
    )
    stored = nodes.unique(["iteration", "node_id"])
    per_iteration = (
        drawn.group_by("iteration").agg(
            draws=pl.len(), success=pl.col("success").mean(), reward=pl.col("reward").mean()
        ),
        groups.group_by("iteration").agg(groups=pl.len(), same_reward=pl.col("same").mean()),
        stored.group_by("iteration").agg(
            # Null where nothing is known, which is not 0 of 0.
            entropy=(pl.col("entropy").sum() / pl.col("entropies").sum().replace(0, None)).cast(pl.Float32),
            stored=pl.col("stored").sum(),
        ),
        steps.agg(turns=pl.len(), tool_errors=failed.sum() / called.sum()).collect(),
        per_draw.group_by("iteration").agg(pl.col("length", "generated", "versioned", "age").sum()),
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
        staleness=pl.col("age") / pl.col("versioned").replace(0, None),
        tool_errors="tool_errors",
    )


def _among(values: Any) -> pl.Expr:
    import polars as pl

    return pl.col(values.name).is_in(values.unique().implode())
