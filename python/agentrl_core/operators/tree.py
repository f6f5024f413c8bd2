"""Credit on trees of shared prefixes: aggregate values from rows to roots, and distribute them along paths.

A tree is a column `parents`: the row of each node's parent, -1 for a root. Rows (rollouts) name the node at which they
end. Combine `fuse` and group statistics over `peers` for the tree credits of the literature:

    depth-wise (BranchGRPO):  group.normalise(fuse(...).values, peers(parents, kind="depth"))
    sibling-relative:         group.normalise(fuse(...).values, peers(parents, kind="siblings"))
    subtree success (TreeRL): fuse(...).values[node] - fuse(...).values[parent]
    hard attribution (ARPO):  fuse(parents, nodes, advantages).values, one advantage for each node
    TreePO:                   ancestor_relative(...)
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


class PrefixTree(NamedTuple):
    """A tree built from paths.

    Attributes:
        parents: `int64[m]`, the row of each node's parent, -1 for a root; parents come before their children.
        nodes: `uint32[n]`, the node at which each path ends.
    """

    parents: NDArray[np.int64]
    nodes: NDArray[np.uint32]


class NodeValues(NamedTuple):
    """Aggregated value and weight of each node.

    Attributes:
        values: `float64[m]`; 0 if no valid row ends at or below the node.
        masses: `float64[m]`, the weight of the valid rows at and below the node.
    """

    values: NDArray[np.float64]
    masses: NDArray[np.float64]


def build(elements: object, offsets: object) -> PrefixTree:
    """Merge paths into trees: rows share a node if their paths are equal up to it. O(elements).

    Args:
        elements: ids along the paths (prompt, then segments or steps), whole numbers or strings, path after path.
        offsets: n + 1 whole numbers; path i is `elements[offsets[i]:offsets[i + 1]]`. Paths are not empty.

    Raises:
        InvalidInputError: offsets do not fit the elements, or a path is empty.

    Example:
        >>> from agentrl_core.operators import tree
        >>> tree.build(["p", "a", "p", "b", "p", "a"], [0, 2, 4, 6]).nodes.tolist()
        [1, 2, 1]
    """
    column = columns.column(elements, "elements")
    ids = column if column.dtype.kind in "iu" else columns.keys(elements, "elements")
    parents, nodes = _core.tree.build(columns.integers(ids, "elements"), columns.integers(offsets, "offsets"))
    return PrefixTree(parents, nodes)


def fuse(
    parents: object,
    nodes: object,
    values: object,
    *,
    kind: Literal["leaves", "children", "path", "expectile", "max", "min", "sum"] = "leaves",
    edge_logprobs: object | None = None,
    alpha: float = 1.0,
    expectile: float = 0.7,
    weights: object | None = None,
    valid: object | None = None,
) -> NodeValues:
    """Aggregate the value of each node from the rows that end at or below it, in O(nodes + rows).

    `leaves`: the mean of the rows below, by weight (success rate of a subtree: TreeRL, arXiv:2506.11902; hard
    attribution of ARPO, arXiv:2507.19849). `children`: the mean of the children's values. `path`: the mean of the
    children's values by softmax(alpha * log p(child)) (both BranchGRPO, arXiv:2509.06040). `max` and `min`: optimistic
    and pessimistic values of Tree-OPO, arXiv:2509.09284. `expectile`: between the mean and the extremes of the
    children's values, the v with sum |tau - 1[V(child) < v]| (V(child) - v) = 0 (implicit Q-learning,
    arXiv:2110.06169). The result is bit-identical for any order of rows.

    Args:
        parents: m whole numbers, -1 for a root.
        nodes: n whole numbers, the node at which each row ends.
        values: n numbers.
        kind: see above. Rows that end at a node with children count together as one more child.
        edge_logprobs: m numbers, the log-probability of the edge above each node; with `path` only.
        alpha: strength of the probabilities; with `path` only.
        expectile: tau, from the smallest (0) over the mean (0.5) to the largest (1); with `expectile` only.
        weights: n numbers of at least 0; None: 1.
        valid: n booleans; rows that are False do not count. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, a node does not exist, or a valid value is not finite.

    Example:
        >>> from agentrl_core.operators import tree
        >>> tree.fuse([-1, 0, 0, 1, 1], [3, 4, 2], [1.0, 0.0, 1.0], kind="children").values.tolist()
        [0.75, 0.5, 1.0, 1.0, 0.0]
    """
    scores = columns.doubles(values, "values")
    count = len(scores)
    fused, masses = _core.tree.fuse(
        columns.integers(parents, "parents"),
        _rows(nodes, "nodes", count, "values"),
        scores,
        kind=kind,
        alpha=alpha,
        expectile=expectile,
        edge_logprobs=None if edge_logprobs is None else columns.doubles(edge_logprobs, "edge_logprobs"),
        weights=columns.optional_numbers(weights, "weights", length=count, first="values"),
        valid=columns.mask(valid, "valid", length=count, first="values"),
    )
    return NodeValues(fused, masses)


def ancestor_relative(
    parents: object,
    nodes: object,
    values: object,
    *,
    weighting: Literal["average", "group_size"] = "group_size",
    drop_constant: bool = False,
    singleton: Literal["zero", "raw"] = "zero",
    weights: object | None = None,
    valid: object | None = None,
) -> NDArray[Any]:
    """Advantage of each row over rows with a common prefix, averaged over its ancestors.

    A_i = sum_a w_a (R_i - V(a)) / sum_a w_a over the ancestors a of row i with at least two rows, and the root; V(a) is
    the mean of the rows through a. From TreePO, arXiv:2508.17445 (before its whitening over the batch).

    Args:
        parents: m whole numbers, -1 for a root.
        nodes: n whole numbers, the node at which each row ends.
        values: n numbers.
        weighting: w_a is the weight of the rows through a (`group_size`) or 1 (`average`), in TreePO's terms.
        drop_constant: whether to skip ancestors (except the root) with equal values below.
        singleton: the only row of a tree gets 0 (`zero`) or its value (`raw`, the public code).
        weights: n numbers of at least 0; None: 1.
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 values, else `float64[n]`.

    Raises:
        InvalidInputError: as for `fuse`.

    Example:
        >>> from agentrl_core.operators import tree
        >>> parents = [-1, 0, 0, 1, 1, 2, 2]
        >>> tree.ancestor_relative(parents, [3, 4, 5, 6], [1.0, 0.0, 0.0, 0.0], weighting="average").tolist()
        [0.625, -0.375, -0.125, -0.125]
    """
    scores = columns.numbers(values, "values")
    count = len(scores)
    advantages = _core.tree.ancestor_relative(
        columns.integers(parents, "parents"),
        _rows(nodes, "nodes", count, "values"),
        columns.doubles(scores, "values"),
        weighting=weighting,
        drop_constant=drop_constant,
        singleton=singleton,
        weights=columns.optional_numbers(weights, "weights", length=count, first="values"),
        valid=columns.mask(valid, "valid", length=count, first="values"),
    )
    return columns.like(advantages, scores)


def peers(parents: object, *, kind: Literal["siblings", "depth", "tree"]) -> NDArray[np.uint32]:
    """Dense group ids of nodes to compare, for depth-wise and sibling-relative credit.

    Args:
        parents: m whole numbers, -1 for a root.
        kind: `siblings`, children of one parent (TreeRPO; a root is alone); `depth`, nodes of one tree at one depth
            (BranchGRPO); or `tree`, all nodes of one tree.

    Raises:
        InvalidInputError: a parent is not a row, a node is its own ancestor, or `kind` is unknown.

    Example:
        >>> from agentrl_core.operators import tree
        >>> tree.peers([-1, 0, 0, 1, 2], kind="depth").tolist()
        [0, 1, 1, 2, 2]
    """
    return _core.tree.peers(columns.integers(parents, "parents"), kind)


def isotonic(
    parents: object,
    values: object,
    *,
    margin: float = 0.0,
    radius: Literal["none", "soft", "hard"] = "none",
    weights: object | None = None,
    valid: object | None = None,
) -> NDArray[Any]:
    """Isotonic regression on trees: argmin sum w (a - x)^2 with a_parent + margin <= a_child.

    With a radius, each tree is then centred and scaled to |a|^2 <= N (`soft`) or = N (`hard`), N its valid nodes. From
    the ordered projection of Tree-OPO, arXiv:2509.09284, solved exactly by pooling (O(m log^2 m)).

    Args:
        parents: m whole numbers, -1 for a root.
        values: m numbers.
        margin: at least 0.
        radius: see above.
        weights: m positive numbers; None: 1.
        valid: m booleans; nodes that are False are skipped (their children attach to the next valid node above) and get
            0.

    Returns:
        `float32[m]` for float32 values, else `float64[m]`.

    Raises:
        InvalidInputError: lengths differ, a valid value is not finite, a weight is not positive or `margin` is
            negative.

    Example:
        >>> from agentrl_core.operators import tree
        >>> tree.isotonic([-1, 0, 0], [1.0, 0.0, 3.0]).tolist()
        [0.5, 0.5, 3.0]
    """
    numbers = columns.numbers(values, "values")
    count = len(numbers)
    projected = _core.tree.isotonic(
        columns.integers(parents, "parents"),
        columns.doubles(numbers, "values"),
        margin=margin,
        radius=radius,
        weights=columns.optional_numbers(weights, "weights", length=count, first="values"),
        valid=columns.mask(valid, "valid", length=count, first="values"),
    )
    return columns.like(projected, numbers)


def _rows(values: object, name: str, length: int, first: str) -> NDArray[Any]:
    """Return rows of a table for the core: `uint32` unchanged, others as `int64`."""
    if isinstance(values, np.ndarray) and values.dtype == np.uint32:
        return columns.ids(values, name, length=length, first=first)
    return columns.integers(values, name, length=length, first=first)
