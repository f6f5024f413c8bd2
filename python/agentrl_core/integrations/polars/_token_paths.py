"""Paths through the token tree as columns: from the last node of each path back to its root, all paths at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core.exceptions import CorruptError, NotFoundError

Indices = NDArray[np.int64]


class NodeColumns(NamedTuple):
    """Nodes of token trees as columns, in any order.

    `node_id` int64[n]; `parent` int64[n], index of the parent, -1 for a root; `parent_end` int64[n], number of the
    parent's tokens before the node, -1: all; `length` int64[n], number of the node's tokens.
    """

    node_id: Indices
    parent: Indices
    parent_end: Indices
    length: Indices

    @classmethod
    def of(cls, node_id: Indices, parent_id: Indices, parent_end: Indices, length: Indices) -> NodeColumns:
        """Create the columns from node and parent ids, where -1 means no parent, or all of the parent's tokens."""
        parent = np.full(len(node_id), -1, np.int64)
        has_parent = parent_id >= 0
        parent[has_parent] = find(node_id, parent_id[has_parent])
        return cls(node_id, parent, parent_end, length)


class PathNodes(NamedTuple):
    """The nodes of paths, one row each: paths in order, each from its first to its last node.

    `path` int64[m], number of the path; `node` int64[m], index of the node; `end` int64[m], number of its tokens on the
    path.
    """

    path: Indices
    node: Indices
    end: Indices


def find(node_id: Indices, wanted: Indices) -> Indices:
    """Return the index of each wanted node id.

    Raises:
        NotFoundError: there is no such node.
    """
    order = np.argsort(node_id, kind="stable")
    place = np.searchsorted(node_id, wanted, sorter=order)
    found = order[np.minimum(place, len(order) - 1)] if len(order) else np.full(len(wanted), -1)
    missing = np.flatnonzero(node_id[found] != wanted) if len(order) else np.arange(len(wanted))
    if len(missing):
        raise NotFoundError(
            f"node {wanted[missing[0]]} of a path is not in the table nodes; give all nodes of the groups"
        )
    return found


def walk(tree: NodeColumns, last: Indices, end: Indices, first: Indices | None = None) -> PathNodes:
    """Return the nodes of paths that end after `end[i]` tokens of node `last[i]`, from a root or node `first[i]`.

    If the next node on the path forks inside a node, only `parent_end` of its tokens are on the path. There is one
    round for each generation, so the cost is proportional to the number of resulting rows.

    Args:
        tree: the nodes.
        last: index of the last node of each path.
        end: number of its tokens on the path; -1: all.
        first: index of the first node, an ancestor of the last one or the same.

    Raises:
        CorruptError: the parents form a cycle, or `first` is not an ancestor.
    """
    rounds: list[PathNodes] = []
    path = np.arange(len(last))
    node, end = last, np.where(end < 0, tree.length[last], end)
    while len(path):
        if len(rounds) > len(tree.node_id):
            raise CorruptError(
                f"the stored tree is damaged: node {tree.node_id[node[0]]} is its own ancestor; "
                "run agentrl verify on the run"
            )
        rounds.append(PathNodes(path, node, end))
        above = tree.parent[node]
        goes_on = above >= 0 if first is None else node != first[path]
        if first is not None and (goes_on & (above < 0)).any():
            lost = path[goes_on & (above < 0)][0]
            begin, end_id = tree.node_id[first[lost]], tree.node_id[last[lost]]
            raise CorruptError(
                f"the stored tree is damaged: node {begin}, where a turn begins, is not an ancestor of node {end_id}, "
                "where it ends; run agentrl verify on the run"
            )
        cut = tree.parent_end[node][goes_on]
        path, node = path[goes_on], above[goes_on]
        end = np.where(cut < 0, tree.length[node], cut)
    if not rounds:
        return PathNodes(path, node, end)
    columns = [np.concatenate(parts) for parts in zip(*reversed(rounds), strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return PathNodes(*(column[order] for column in columns))


def ranges(starts: Indices, lengths: Indices) -> Indices:
    """Return the indices `starts[i]`, `starts[i] + 1`, … of all ranges, concatenated."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
