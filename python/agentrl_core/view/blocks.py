"""Data of the page: a table of contents, and blocks of whole groups, as compressed Arrow."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from agentrl_core.data.table_codes import UNTRAINED
from agentrl_core.integrations.polars.tables import Tables

_TOKENS_OF_A_BLOCK = 32_768
# Numbers of tokens are rounded to 12 bits (over three digits), which halves the compressed size.
_SPLIT = 2.0**12 + 1
_LARGEST = 1e30


@dataclass(frozen=True)
class Chosen:
    """The groups of a run, each with the number of the page's block that has its tokens; null if omitted.

    Args:
        groups: `group_id`, `iteration`, `tokens` of all groups of the run, and `block`: null if omitted.
    """

    groups: pl.DataFrame

    @classmethod
    def of(cls, tables: Tables, iterations: tuple[int, int], most: int) -> Chosen:
        """Choose whole groups of some iterations up to a number of tokens, latest first; at least one group."""
        first = tables.trajectories.group_by("group_id").agg(pl.col("iteration").min())
        tokens = tables.nodes.group_by("group_id").agg(tokens=pl.col("tokens").list.len().cast(pl.Int64).sum())
        groups = first.join(tokens, on="group_id", how="left").with_columns(pl.col("tokens").fill_null(0)).collect()
        groups = groups.sort("iteration", "group_id", descending=[True, False])
        selected = groups.filter(pl.col("iteration").is_between(*iterations, closed="left"))
        before = pl.col("tokens").cum_sum() - pl.col("tokens")
        selected = selected.filter((before < most) & (pl.col("tokens").cum_sum() <= most) | (before == 0))
        blocks = selected.select(
            "group_id", block=(pl.col("tokens").cum_sum() // _TOKENS_OF_A_BLOCK).rle_id().cast(pl.Int32)
        )
        return cls(groups.join(blocks, on="group_id", how="left").sort("iteration", "group_id"))

    @property
    def kept(self) -> pl.DataFrame:
        """Return `group_id` and `block` of the groups in the page."""
        return self.groups.filter(pl.col("block").is_not_null()).select("group_id", "block")


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    """Convert a frame to types that the page reads, such as hashes to hex text and times to microseconds."""
    columns = []
    for name, kind in frame.schema.items():
        column = pl.col(name)
        if kind == pl.Binary:
            column = column.bin.encode("hex")
        elif isinstance(kind, pl.Datetime):
            column = column.dt.epoch("us")
        elif isinstance(kind, (pl.Struct, pl.Array, pl.Object)):
            column = column.struct.json_encode() if isinstance(kind, pl.Struct) else column.cast(pl.String)
        elif isinstance(kind, (pl.Enum, pl.Categorical)):
            column = column.to_physical()
        elif isinstance(kind, pl.List) and kind.inner.is_float():
            column = column.list.eval(_rounded(pl.element()))
        elif isinstance(kind, pl.List) and not kind.inner.is_numeric():
            continue
        columns.append(column.alias(name))
    return frame.select(columns)


def _rounded(value: pl.Expr) -> pl.Expr:
    """Round numbers to 12 significant bits (Veltkamp's splitting)."""
    single = value.cast(pl.Float32)
    far = single * pl.lit(_SPLIT, pl.Float32)
    return pl.when(single.abs() < _LARGEST).then(far - (far - single)).otherwise(single)


def blocks(tables: Tables, chosen: Chosen) -> Iterator[bytes]:
    """Yield the compressed blocks of the chosen groups, in the order of their numbers."""
    kept_groups = chosen.kept.lazy()
    trajectories = tables.trajectories.join(kept_groups, on="group_id")
    of = trajectories.select("trajectory_id", "block")
    draws = tables.draws.join(tables.draw_columns, on="draw_id", how="left").join(of, on="trajectory_id")
    nodes = tables.nodes.join(tables.node_columns, on="node_id", how="left").join(kept_groups, on="group_id")
    sampling = [
        pl.col("sampling").struct.field("temperature").alias("temperature"),
        pl.col("blobs").list.eval(pl.element().bin.encode("hex")).list.join(" ").alias("images"),
    ]
    shared = _inherited(trajectories, tables.steps)
    page_steps = _own_steps(tables.steps, shared).join(of, on="trajectory_id")
    steps = tables.step_columns.join(draws.select("draw_id", "block"), on="draw_id")
    frames = {
        "nodes": nodes.with_columns(sampling).drop("sampling", "blobs", "seed").sort("node_id"),
        "trajectories": trajectories.join(shared.lazy(), on="trajectory_id", how="left").sort("trajectory_id"),
        "steps": page_steps.sort("trajectory_id", "step"),
        "draws": draws.sort("draw_id"),
        "step_columns": steps.sort("draw_id", "step"),
        "decisions": tables.decisions.join(kept_groups, on="group_id"),
    }
    split: dict[str, tuple[dict[Any, pl.DataFrame], pl.DataFrame]] = {}
    for name, lazy in frames.items():
        frame = plain(lazy.collect())
        parts = frame.partition_by("block", as_dict=True, maintain_order=True)
        split[name] = ({key[0]: part.drop("block") for key, part in parts.items()}, frame.clear().drop("block"))
    for block in sorted(chosen.kept["block"].unique()):
        yield packed({name: parts.get(block, empty) for name, (parts, empty) in split.items()})


_FROM_OTHERS = pl.col("origin_trajectory_id") != pl.col("trajectory_id")


def _inherited(trajectories: pl.LazyFrame, steps: pl.LazyFrame) -> pl.DataFrame:
    """Return how many of its first steps each branch shares with the trajectory from which it forked.

    A store has all steps of each trajectory, depth times leaves for a deep tree; a page has each step once. `inherited`
    is 0 unless the parent has all shared steps under the same numbers. `inherited_untrained` is the number of inherited
    steps, the first ones, that the branch does not train.
    """
    place, action = ["trajectory_id", "step"], ["first_node_id", "node_id", "end", "truncated"]
    counts = (
        steps.filter(_FROM_OTHERS)
        .group_by("trajectory_id")
        .agg(
            last=pl.col("step").max(),
            inherited=pl.len().cast(pl.Int32),
            inherited_untrained=(pl.col("flags") & UNTRAINED != 0).sum().cast(pl.Int32),
        )
    )
    branches = (
        trajectories.select("trajectory_id", "parent_trajectory", "block").join(counts, on="trajectory_id").collect()
    )
    blocks = trajectories.select(parent_trajectory="trajectory_id", block="block").collect()
    follows = (pl.col("parent_trajectory") < pl.col("trajectory_id")) & (pl.col("last") == pl.col("inherited") - 1)
    near = branches.filter(follows).join(blocks, on=["parent_trajectory", "block"], how="semi")
    # If the parent's step of that number is the last inherited one, earlier steps are equal too.
    child, parent = (near.select(trajectory_id=name, step="last") for name in ("trajectory_id", "parent_trajectory"))
    at = steps.join(pl.concat([child, parent]).unique().lazy(), on=place, how="semi").select(*place, *action).collect()
    same = near.join(at, left_on=["trajectory_id", "last"], right_on=place).join(
        at, left_on=["parent_trajectory", "last", *action], right_on=[*place, *action], how="semi", nulls_equal=True
    )
    return branches.select("trajectory_id").join(
        same.select("trajectory_id", "inherited", "inherited_untrained"), on="trajectory_id", how="left"
    )


def _own_steps(steps: pl.LazyFrame, shared: pl.DataFrame) -> pl.LazyFrame:
    """Return the steps of a page: each trajectory without the steps that its parent has under the same number."""
    alone = shared.filter(pl.col("inherited").is_null()).select("trajectory_id")
    page_steps = steps.filter(~_FROM_OTHERS)
    if alone.is_empty():
        return page_steps
    return pl.concat([page_steps, steps.filter(_FROM_OTHERS).join(alone.lazy(), on="trajectory_id", how="semi")])


def packed(frames: Mapping[str, pl.DataFrame]) -> bytes:
    """Pack frames into one gzip: for each the lengths of name and Arrow stream, the name, the stream."""
    buffer = io.BytesIO()
    for name, frame in frames.items():
        stream = io.BytesIO()
        frame.rechunk().write_ipc_stream(stream, compat_level=pl.CompatLevel.oldest())
        buffer.write(struct.pack("<II", len(name), stream.tell()) + name.encode() + stream.getvalue())
    return gzip.compress(buffer.getvalue(), 6, mtime=0)
