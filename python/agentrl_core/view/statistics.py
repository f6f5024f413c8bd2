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
