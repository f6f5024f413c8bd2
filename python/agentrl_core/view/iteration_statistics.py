"""Training statistics: one row of numbers per iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_core import env
from agentrl_core.exceptions import NotFoundError

if TYPE_CHECKING:
    import polars as pl

    from agentrl_core.integrations.polars.tables import Tables

_DRAWS_AT_ONCE = 16_384


def rollout_counts(tables: Tables) -> pl.DataFrame:
    """Count the rollouts of each iteration: the numbers that several commands print come from here.

    Returns:
        One row per iteration with rollouts or draws, and per later one with metrics: `groups` and `trajectories` that
        it stored, drawn or not; `left_out`, those of its trajectories that no iteration drew (rejected, dropped,
        failed, not yet drawn); `draws` of its batch, also of older trajectories; means of `success` and `reward` over
        its trajectories, without helpers and unknown values.

    Example:
        >>> from agentrl_core.integrations.polars import example, scan
        >>> from agentrl_core.view.iteration_statistics import rollout_counts
        >>> rollout_counts(scan(example())).select("groups", "trajectories", "left_out", "draws", "reward").row(0)
        (1, 2, 0, 2, 0.5)
    """
    import polars as pl

    drawn_trajectories = tables.draws.select("trajectory_id", drawn=True).unique("trajectory_id")
    facts = tables.trajectories.select("trajectory_id", "group_id", "iteration", "role", "success", "reward")
    policy = pl.col("role") != "helper"
    stored = (
        facts.join(drawn_trajectories, on="trajectory_id", how="left")
        .group_by("iteration")
        .agg(
            groups=pl.col("group_id").n_unique().cast(pl.Int64),
            trajectories=pl.len().cast(pl.Int64),
            left_out=pl.col("drawn").is_null().sum().cast(pl.Int64),
            success=pl.col("success").filter(policy).mean(),
            reward=pl.col("reward").filter(policy).mean(),
        )
    )
    draws = tables.draws.group_by("iteration").agg(draws=pl.len().cast(pl.Int64))
    # Metrics of dropped iterations stay in a store: an iteration without rollouts and draws counts only if it is later.
    firsts = pl.concat([table.select(pl.col("iteration").min()) for table in (tables.draws, tables.trajectories)])
    first = firsts.drop_nulls().head(1).select(first="iteration")
    closed = tables.metrics.select("iteration").unique().join(first, how="cross")
    closed = closed.filter(pl.col("iteration") > pl.col("first")).select("iteration")
    counts: pl.DataFrame = (
        stored.join(draws, on="iteration", how="full", coalesce=True)
        .join(closed, on="iteration", how="full", coalesce=True)
        .with_columns(pl.col("groups", "trajectories", "left_out", "draws").fill_null(0))
        .select("iteration", "groups", "trajectories", "left_out", "draws", "success", "reward")
        .sort("iteration")
        .collect()
    )
    return counts


def statistics(tables: Tables) -> pl.DataFrame:
    """Return the columns that `agentrl stats --help` explains: `rollout_counts`, and numbers of the draws."""
    import polars as pl

    draws: Any = tables.draws.sort("draw_id").collect()
    # Iterations are processed in batches of limited size, so that memory stays bounded.
    sizes = draws.group_by("iteration").len().sort("iteration")
    chunk = (sizes["len"].cum_sum() - sizes["len"]) // _DRAWS_AT_ONCE
    frames = [
        _of_draws(draws.filter(pl.col("iteration").is_in(part["iteration"].implode())), tables)
        for part in sizes.with_columns(chunk=chunk).partition_by("chunk", maintain_order=True)
    ]
    draw_statistics = pl.concat(frames or [_of_draws(draws, tables)])
    rows = rollout_counts(tables).join(draw_statistics, on="iteration", how="left", maintain_order="left")
    return rows.with_columns(pl.col("drawn_groups").fill_null(0)).select(
        "iteration", "draws", pl.exclude("iteration", "draws")
    )


def _of_draws(draws: Any, tables: Tables) -> pl.DataFrame:
    import polars as pl

    # Each chunk reads only its draws from each file: all chunks together read a run about once.
    in_chunk = _among(draws["trajectory_id"])
    tables = replace(tables, trajectories=tables.trajectories.filter(in_chunk), steps=tables.steps.filter(in_chunk))
    facts: Any = tables.trajectories.select("trajectory_id", "success", "reward").collect()
    with_facts = draws.join(facts, on="trajectory_id", how="left")
    # The advantage uses the score; before it is computed, use the reward.
    score = pl.col("reward")
    if "score" in tables.draw_columns.collect_schema().names():
        scores: Any = tables.draw_columns.filter(_among(draws["draw_id"])).select("draw_id", "score").collect()
        with_facts, score = with_facts.join(scores, on="draw_id", how="left"), pl.coalesce("score", "reward")
    known = score.fill_nan(None).drop_nulls()
    groups = with_facts.group_by("iteration", "group_id").agg(same=pl.when(known.len() > 0).then(known.n_unique() == 1))
    steps = draws.lazy().join(tables.steps, on="trajectory_id").group_by("iteration")
    called = pl.col("flags") & env.StepFlag.TOOL_RESULT != 0
    failed = pl.col("flags") & env.StepFlag.TOOL_ERROR != 0
    per_draw, stored = _path_sums(draws, tables)
    per_iteration = (
        with_facts.group_by("iteration").agg(
            draws=pl.len(), drawn_success=pl.col("success").mean(), drawn_reward=pl.col("reward").mean()
        ),
        groups.group_by("iteration").agg(drawn_groups=pl.len().cast(pl.Int64), same_reward=pl.col("same").mean()),
        stored.group_by("iteration").agg(
            # Null if nothing is known, unlike 0 of 0.
            entropy=(pl.col("entropy").sum() / pl.col("entropies").sum().replace(0, None)).cast(pl.Float32),
            stored=pl.col("stored").sum(),
        ),
        steps.agg(turns=pl.len(), tool_errors=failed.sum() / called.sum()).collect(),
        per_draw.group_by("iteration").agg(pl.col("length", "generated", "versioned", "age").sum()),
    )
    rows: pl.DataFrame = per_iteration[0]
    for other in per_iteration[1:]:
        rows = rows.join(other, on="iteration", how="left")
    return rows.select(
        "iteration",
        "drawn_groups",
        "drawn_success",
        "drawn_reward",
        "same_reward",
        "entropy",
        turns=pl.col("turns").fill_null(0) / pl.col("draws"),
        action_length=pl.col("generated") / pl.col("draws"),
        length=pl.col("length") / pl.col("draws"),
        sharing=pl.col("length") / pl.col("stored"),
        staleness=pl.col("age") / pl.col("versioned").replace(0, None),
        tool_errors="tool_errors",
    )


def _path_sums(draws: Any, tables: Tables) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the sums over the path of each draw, and the nodes of each iteration's paths, each once.

    A path consists of all nodes above its last node, and the used part of that node. Sums above all nodes are computed
    at once by pointer doubling: from a node to its parent, then two, four, eight levels up. Explicit paths would be
    quadratic in a deep tree.
    """
    import polars as pl

    home = tables.trajectories.select("trajectory_id", "leaf_node_id", "leaf_end", home="group_id")
    leaves: Any = draws.lazy().select("iteration", "draw_id", "trajectory_id").join(home, on="trajectory_id").collect()
    known = pl.col("entropies").cast(pl.List(pl.Float64)).list.drop_nulls()
    columns = ("node_id", "parent_id", "parent_end", "group_id", "kind", "policy_version")
    length = pl.col("tokens").list.len().cast(pl.Int64)
    in_groups = _among(leaves["home"].alias("group_id"))
    node_sums = tables.nodes.filter(in_groups).select(
        *columns, stored=length, entropy=known.list.sum(), entropies=known.list.len()
    )
    groups = leaves.select("iteration", group_id="home").unique().lazy()
    nodes = groups.join(node_sums, on="group_id").sort("iteration", "node_id").with_row_index("row").collect()
    rows = nodes.select("iteration", "row", node_id="node_id", length="stored")
    at = {"left_on": ["iteration", "parent_id"], "right_on": ["iteration", "node_id"]}
    above = nodes.join(rows, **at, how="left", maintain_order="left", suffix="_above")
    ends = leaves.join(rows, left_on=["iteration", "leaf_node_id"], right_on=["iteration", "node_id"], how="left")
    missing = above.filter(pl.col("parent_id").is_not_null() & pl.col("row_above").is_null())["parent_id"].to_list()
    missing += ends.filter(pl.col("row").is_null())["leaf_node_id"].to_list()
    if missing:
        raise NotFoundError(f"node {missing[0]} is on the path of a draw and is missing; run agentrl verify")
    parents = above["row_above"].cast(pl.Int64).fill_null(-1).to_numpy()
    used_lengths = above.select(pl.coalesce("parent_end", "length").fill_null(0).cast(pl.Int64)).to_series().to_numpy()
    versions = nodes["policy_version"]
    values = np.stack(
        [
            np.ones(len(nodes), np.int64),
            (nodes["kind"] == "action").to_numpy(),
            versions.is_not_null().to_numpy(),
            versions.fill_null(0).to_numpy(),
        ]
    )
    before = values[:, parents] * used_lengths
    on_path = np.zeros(len(nodes), bool)
    last = ends["row"].to_numpy()
    on_path[last] = True
    far = parents
    while (reaching := np.flatnonzero(far >= 0)).size:
        before[:, reaching] += before[:, far[reaching]]
        on_path[far[reaching[on_path[reaching]]]] = True
        following = np.full(len(far), -1)
        following[reaching] = far[far[reaching]]
        far = following
    count = ends.select(pl.coalesce("leaf_end", "length").cast(pl.Int64)).to_series().to_numpy()
    sums = before[:, last] + values[:, last] * count
    per_draw = ends.select("iteration", "draw_id").with_columns(
        length=sums[0],
        generated=sums[1],
        versioned=sums[2],
        age=ends["iteration"].to_numpy() * sums[2] - sums[3],
    )
    return per_draw, nodes.filter(on_path)


def _among(values: Any) -> pl.Expr:
    import polars as pl

    return pl.col(values.name).is_in(values.unique().implode())
