"""What the page holds of a run: a table of contents, and blocks of whole groups, as compressed Arrow."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from agentrl_core.integrations.polars import Tables

_TOKENS_OF_A_BLOCK = 32_768
# Numbers of tokens are kept to 12 bits, which are more than three digits, and compress to half.
_SPLIT = 2.0**12 + 1
_LARGEST = 1e30


@dataclass(frozen=True)
class Chosen:
    """The groups whose tokens a page holds, and in which block.

    Args:
        groups: `group_id`, `iteration`, `tokens` of all groups of the run, and `block`: null where it is left out.
    """

    groups: pl.DataFrame

    @classmethod
    def of(cls, tables: Tables, iterations: tuple[int, int], most: int) -> Chosen:
        """Groups of some iterations, the latest first, until they have so many tokens; whole groups, at least one."""
        first = tables.trajectories.group_by("group_id").agg(pl.col("iteration").min())
        tokens = tables.nodes.group_by("group_id").agg(tokens=pl.col("tokens").list.len().cast(pl.Int64).sum())
        groups = first.join(tokens, on="group_id", how="left").with_columns(pl.col("tokens").fill_null(0)).collect()
        groups = groups.sort("iteration", "group_id", descending=[True, False])
        wanted = groups.filter(pl.col("iteration").is_between(*iterations, closed="left"))
        before = pl.col("tokens").cum_sum() - pl.col("tokens")
        wanted = wanted.filter((before < most) & (pl.col("tokens").cum_sum() <= most) | (before == 0))
        blocks = wanted.select(
            "group_id", block=(pl.col("tokens").cum_sum() // _TOKENS_OF_A_BLOCK).rle_id().cast(pl.Int32)
        )
        return cls(groups.join(blocks, on="group_id", how="left").sort("iteration", "group_id"))

    @property
    def kept(self) -> pl.DataFrame:
        """`group_id` and `block` of the groups that the page holds."""
        return self.groups.filter(pl.col("block").is_not_null()).select("group_id", "block")


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with types that the page reads: hashes as hexadecimal text, times as microseconds, tables as JSON."""
    made = []
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
        made.append(column.alias(name))
    return frame.select(made)


def _rounded(value: pl.Expr) -> pl.Expr:
    """The nearest number of 12 bits (Veltkamp's splitting)."""
    single = value.cast(pl.Float32)
    far = single * pl.lit(_SPLIT, pl.Float32)
    return pl.when(single.abs() < _LARGEST).then(far - (far - single)).otherwise(single)


def blocks(tables: Tables, chosen: Chosen) -> Iterator[bytes]:
    """The blocks in the order of their numbers."""
    kept = chosen.kept.lazy()
    trajectories = tables.trajectories.join(kept, on="group_id")
    of = trajectories.select("trajectory_id", "block")
    draws = tables.draws.join(tables.draw_columns, on="draw_id", how="left").join(of, on="trajectory_id")
    nodes = tables.nodes.join(tables.node_columns, on="node_id", how="left").join(kept, on="group_id")
    sampling = [pl.col("sampling").struct.field("temperature").alias("temperature")]
    steps = tables.step_columns.join(draws.select("draw_id", "block"), on="draw_id")
    found = {
        "nodes": nodes.with_columns(sampling).drop("sampling", "blobs", "seed").sort("node_id"),
        "trajectories": trajectories.sort("trajectory_id"),
        "steps": tables.steps.join(of, on="trajectory_id").sort("trajectory_id", "step"),
        "draws": draws.sort("draw_id"),
        "step_columns": steps.sort("draw_id", "step"),
        "decisions": tables.decisions.join(kept, on="group_id"),
    }
    split: dict[str, tuple[dict[Any, pl.DataFrame], pl.DataFrame]] = {}
    for name, lazy in found.items():
        frame = plain(lazy.collect())
        parts = frame.partition_by("block", as_dict=True, maintain_order=True)
        split[name] = ({key[0]: part.drop("block") for key, part in parts.items()}, frame.clear().drop("block"))
    for block in sorted(chosen.kept["block"].unique()):
        yield packed({name: parts.get(block, empty) for name, (parts, empty) in split.items()})


def packed(frames: Mapping[str, pl.DataFrame]) -> bytes:
    """Frames as one gzip: of each the length of its name, that of its Arrow stream, the name, the stream."""
    whole = io.BytesIO()
    for name, frame in frames.items():
        stream = io.BytesIO()
        frame.rechunk().write_ipc_stream(stream, compat_level=pl.CompatLevel.oldest())
        whole.write(struct.pack("<II", len(name), stream.tell()) + name.encode() + stream.getvalue())
    return gzip.compress(whole.getvalue(), 6, mtime=0)
