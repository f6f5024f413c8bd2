"""Contexts of a batch, read from its tables one node at a time."""

from __future__ import annotations

import polars as pl

from agentrl_core import Batch


def path(nodes: dict[int, dict], last: int | None, end: int | None) -> list[int]:
    """Return the tokens from the root to the end of a node, from the tables."""
    tokens: list[int] = []
    while last is not None:
        tokens = nodes[last]["tokens"][:end] + tokens
        last, end = nodes[last]["parent_id"], nodes[last]["parent_end"]
    return tokens


def contexts(batch: Batch) -> list[list[list[int]]]:
    """Return for each draw the context of each step, and all tokens up to its end."""
    nodes = {row["node_id"]: row for row in pl.DataFrame(batch.nodes).iter_rows(named=True)}
    steps, result = pl.DataFrame(batch.steps), []
    for draw in pl.DataFrame(batch.trajectories).iter_rows(named=True):
        first = steps.filter(pl.col("trajectory_id") == draw["trajectory_id"])["first_node_id"]
        before = [path(nodes, nodes[node]["parent_id"], nodes[node]["parent_end"]) for node in first]
        result.append([*before, path(nodes, draw["leaf_node_id"], draw["leaf_end"])])
    return result
