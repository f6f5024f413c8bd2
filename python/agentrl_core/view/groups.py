"""One row per group of a run, for filtering and sorting in the page."""

from __future__ import annotations

from typing import Any

import polars as pl

from agentrl_core.data.table_codes import StepFlag
from agentrl_core.integrations.polars.tables import Tables
from agentrl_core.view.blocks import Chosen


def of_groups(tables: Tables, chosen: Chosen) -> pl.DataFrame:
    """Return one row per group: counts, means, shares, `block` (-1: omitted), and the members' rewards as a list."""
    status = pl.col("status")
    members = pl.col("role") == "member"
    trajectories = tables.trajectories.group_by("group_id").agg(
        pl.col("task_id").first(),
        members=members.sum(),
        agents=pl.col("agent").n_unique(),
        rewards=pl.col("reward").filter(members).cast(pl.Float32),
        reward=pl.col("reward").filter(members).mean(),
        success=pl.col("success").filter(members).mean(),
        truncated=(status == "truncated").sum(),
        failed=status.is_in(["aborted", "failed"]).sum(),
        lag=(pl.col("iteration") - pl.col("min_policy_version")).max(),
    )
    action = pl.col("kind") == "action"
    nodes = tables.nodes.group_by("group_id").agg(
        generated=pl.col("tokens").list.len().filter(action).cast(pl.Int64).sum(),
        length=(pl.col("start") + pl.col("tokens").list.len()).max(),
        entropy=pl.col("entropies").list.explode().mean(),
        roots=pl.col("parent_id").is_null().sum(),
        nodes=pl.len(),
    )
    flags = pl.col("flags")
    steps = tables.steps.join(tables.trajectories.select("trajectory_id", "group_id"), on="trajectory_id")
    turns = steps.group_by("group_id").agg(
        turns=pl.len(),
        tool_errors=(flags & int(StepFlag.TOOL_ERROR) != 0).sum(),
        format_errors=(flags & int(StepFlag.FORMAT_ERROR) != 0).sum(),
        drifted=(pl.col("drift").fill_null("clean") != "clean").sum(),
    )
    draw_rows: Any = tables.draws.select("draw_id", "group_id", "trajectory_id", "iteration", "votes")
    draw_rows = draw_rows.join(tables.draw_columns, on="draw_id", how="left")
    names = draw_rows.collect_schema().names()
    rewards = tables.trajectories.select("trajectory_id", "reward")
    draw_rows = draw_rows.join(rewards, on="trajectory_id", how="left")
    score = pl.coalesce("score", "reward") if "score" in names else pl.col("reward")
    draw_rows = draw_rows.join(_of_steps(tables), on="draw_id", how="left")
    of_draw = pl.col("advantage").abs() if "advantage" in names else pl.lit(None, pl.Float32)
    draws = draw_rows.group_by("group_id").agg(
        draws=pl.len(),
        same_reward=(score.n_unique() == 1).cast(pl.UInt8),
        largest_advantage=pl.max_horizontal(of_draw, "of_steps").max().cast(pl.Float32),
    )
    joined = chosen.groups.lazy()
    for other in (trajectories, nodes, turns, draws):
        joined = joined.join(other, on="group_id", how="left")
    return joined.with_columns(pl.col("block").fill_null(-1)).sort("iteration", "group_id").collect()


def _of_steps(tables: Tables) -> pl.LazyFrame:
    """Return the largest absolute advantage of each draw's steps, or of their tokens."""
    kind = tables.step_columns.collect_schema().get("advantage")
    if kind is None:
        return pl.LazyFrame(schema={"draw_id": pl.Int64, "of_steps": pl.Float32})
    value = pl.col("advantage").list.explode() if isinstance(kind, pl.List) else pl.col("advantage")
    return tables.step_columns.group_by("draw_id").agg(of_steps=value.abs().max().cast(pl.Float32))
