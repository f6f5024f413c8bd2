"""Credit along trees of shared prefixes: values that rise from the rows to the roots, and fall along the paths.

A tree is a column `parents`: the row of each node's parent, -1 for a root. Rows (rollouts) name the node at which they
end. Every tree credit of the literature is made of `fuse` (bottom-up), `path_sum` (top-down) and group statistics over
`peers`:

    depth-wise (BranchGRPO):  group.normalise(fuse(...).values, peers(parents, of="depth"))
    sibling-relative:         group.normalise(fuse(...).values, peers(parents, of="siblings"))
    subtree success (TreeRL): fuse(...).values[node] - fuse(...).values[parent]
    hard attribution (ARPO):  fuse(parents, nodes, advantages).values, one advantage for each node
    TreePO:                   ancestor_relative(...)
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns


class Tree(NamedTuple):
    """A tree built from paths.

    Attributes:
        parents: `int64[m]`, the row of each node's parent, -1 for a root; parents stand before their children.
        nodes: `uint32[n]`, the node at which each path ends.
    """

    parents: NDArray[np.int64]
    nodes: NDArray[np.uint32]


class Topology(NamedTuple):
    """The shape of a tree, `uint32[m]` each.

    Attributes:
        preorder: the nodes, each followed by the subtrees of its children.
        enter: place of each node in `preorder`.
        exit: the first place after its subtree.
        depth: number of edges to its root.
        root: its root.
        leaves: number of leaves below it; 1 for a leaf.
    """

    preorder: NDArray[np.uint32]
    enter: NDArray[np.uint32]
    exit: NDArray[np.uint32]
    depth: NDArray[np.uint32]
    root: NDArray[np.uint32]
    leaves: NDArray[np.uint32]


class Fused(NamedTuple):
    """Values of nodes.

    Attributes:
        values: `float64[m]`; 0 where no valid row ends at or below the node.
        masses: `float64[m]`, the weight of the valid rows at and below the node.
    """

    values: NDArray[np.float64]
    masses: NDArray[np.float64]


def build(elements: object, offsets: object) -> Tree:
    """Merge paths into trees: rows share a node where their paths are equal up to it. O(elements).

    Args:
        elements: ids along the paths (prompt, then segments or steps), whole numbers or strings, path after path.
        offsets: n + 1 whole numbers; path i is `elements[offsets[i]:offsets[i + 1]]`. Paths are not empty.

    Raises:
        InvalidInputError: offsets do not fit the elements, or a path is empty.

    Example:
        >>> from agentrl_core import tree
        >>> tree.build(["p", "a", "p", "b", "p", "a"], [0, 2, 4, 6]).nodes.tolist()
        [1, 2, 1]
    """
    column = columns.column(elements, "elements")
    ids = column if column.dtype.kind in "iu" else columns.keys(elements, "elements")
    parents, nodes = _core.tree.build(columns.integers(ids, "elements"), columns.integers(offsets, "offsets"))
    return Tree(parents, nodes)


def topology(parents: object) -> Topology:
    """Preorder, depths, roots and leaf counts of a tree, in O(nodes) and without recursion.

    Args:
        parents: m whole numbers, -1 for a root; rows in any order, any number of roots.

    Raises:
        InvalidInputError: a parent is no row, or a node is its own ancestor.

    Example:
        >>> from agentrl_core import tree
        >>> tree.topology([-1, 0, 0, 1]).depth.tolist()
        [0, 1, 1, 2]
    """
    return Topology(**_core.tree.topology(columns.integers(parents, "parents")))


def fuse(
    parents: object,
    nodes: object,
    values: object,
    *,
    how: Literal["leaves", "children", "path", "expectile", "max", "min", "sum"] = "leaves",
    edge_logprobs: object | None = None,
    alpha: float = 1.0,
    expectile: float = 0.7,
    weights: object | None = None,
    valid: object | None = None,
) -> Fused:
    """The value of each node from the rows that end at or below it, bottom-up in O(nodes + rows).

    `leaves`: the mean of the rows below, by weight (success rate of a subtree: TreeRL, arXiv:2506.11902; hard
    attribution of ARPO, arXiv:2507.19849). `children`: the mean of the children's values. `path`: the mean of the
    children's values by softmax(alpha * log p(child)) (both BranchGRPO, arXiv:2509.06040). `max` and `min`: optimistic
    and pessimistic values of Tree-OPO, arXiv:2509.09284. `expectile`: between the mean and the extremes of the
    children's values, the v with sum |tau - 1[V(child) < v]| (V(child) - v) = 0 (implicit Q-learning,
    arXiv:2110.06169). The order of rows does not change a bit.

    Args:
        parents: m whole numbers, -1 for a root.
        nodes: n whole numbers, the node at which each row ends.
        values: n numbers.
        how: see above. Rows that end at a node with children count together as one more child.
        edge_logprobs: m numbers, the log-probability of the edge above each node; with `path` only.
        alpha: how much the probabilities count; with `path` only.
        expectile: tau, from the smallest (0) over the mean (0.5) to the largest (1); with `expectile` only.
        weights: n numbers of at least 0; None: 1.
        valid: n booleans; rows that are False do not count. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, a node does not exist, or a valid value is not finite.

    Example:
        >>> from agentrl_core import tree
        >>> tree.fuse([-1, 0, 0, 1, 1], [3, 4, 2], [1.0, 0.0, 1.0], how="children").values.tolist()
        [0.75, 0.5, 1.0, 1.0, 0.0]
    """
    scores = columns.doubles(values, "values")
    count = len(scores)
    found, masses = _core.tree.fuse(
        columns.integers(parents, "parents"),
        _indices(nodes, "nodes", count),
        scores,
        how=how,
        alpha=alpha,
        expectile=expectile,
        edge_logprobs=None if edge_logprobs is None else columns.doubles(edge_logprobs, "edge_logprobs"),
        weights=columns.optional_numbers(weights, "weights", length=count),
        valid=columns.mask(valid, "valid", length=count),
    )
    return Fused(found, masses)


def path_sum(parents: object, values: object) -> NDArray[Any]:
    """The sum of each node's value and those of its ancestors: what a row collects on its way from the root.

    Args:
        parents: m whole numbers, -1 for a root.
        values: m numbers.

    Returns:
        `float32[m]` for float32 values, else `float64[m]`.

    Raises:
        InvalidInputError: lengths differ, or a value is not finite.

    Example:
        >>> from agentrl_core import tree
        >>> tree.path_sum([-1, 0, 1], [1.0, 2.0, 4.0]).tolist()
        [1.0, 3.0, 7.0]
    """
    given = columns.numbers(values, "values")
    made = _core.tree.path_sum(columns.integers(parents, "parents"), columns.doubles(given, "values"))
    return columns.like(made, given)


def ancestor_relative(
    parents: object,
    nodes: object,
    values: object,
    *,
    weighting: Literal["size", "equal"] = "size",
    skip_constant: bool = False,
    singleton: Literal["zero", "raw"] = "zero",
    weights: object | None = None,
    valid: object | None = None,
) -> NDArray[Any]:
    """How much better each row is than those it shares a prefix with, averaged over its ancestors.

    A_i = sum_a w_a (R_i - V(a)) / sum_a w_a over the ancestors a of row i through which at least two rows go, and the
    root; V(a) is the mean of the rows through a. From TreePO, arXiv:2508.17445 (before its whitening over the batch).

    Args:
        parents: m whole numbers, -1 for a root.
        nodes: n whole numbers, the node at which each row ends.
        values: n numbers.
        weighting: w_a is the weight of the rows through a (`size`, TreePO's `group_size`) or 1 (`equal`, its
            `average`).
        skip_constant: leave out ancestors (but the root) below which all values are equal.
        singleton: the only row of a tree gets 0 (`zero`) or its value (`raw`, the public code).
        weights: n numbers of at least 0; None: 1.
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 values, else `float64[n]`.

    Raises:
        InvalidInputError: as for `fuse`.

    Example:
        >>> from agentrl_core import tree
        >>> parents = [-1, 0, 0, 1, 1, 2, 2]
        >>> tree.ancestor_relative(parents, [3, 4, 5, 6], [1.0, 0.0, 0.0, 0.0], weighting="equal").tolist()
        [0.625, -0.375, -0.125, -0.125]
    """
    given = columns.numbers(values, "values")
    count = len(given)
    made = _core.tree.ancestor_relative(
        columns.integers(parents, "parents"),
        _indices(nodes, "nodes", count),
        columns.doubles(given, "values"),
        weighting=weighting,
        skip_constant=skip_constant,
        singleton=singleton,
        weights=columns.optional_numbers(weights, "weights", length=count),
        valid=columns.mask(valid, "valid", length=count),
    )
    return columns.like(made, given)


def peers(parents: object, *, of: Literal["siblings", "depth", "tree"]) -> NDArray[np.uint32]:
    """Dense ids that are equal for nodes to be compared: the groups of depth-wise and sibling-relative credit.

    Args:
        parents: m whole numbers, -1 for a root.
        of: children of one parent (TreeRPO; a root is alone), nodes of one tree at one depth (BranchGRPO), or one tree.

    Raises:
        InvalidInputError: as for `topology`, or `of` is unknown.

    Example:
        >>> from agentrl_core import tree
        >>> tree.peers([-1, 0, 0, 1, 2], of="depth").tolist()
        [0, 1, 1, 2, 2]
    """
    return _core.tree.peers(columns.integers(parents, "parents"), of)


def isotonic(
    parents: object,
    values: object,
    *,
    margin: float = 0.0,
    radius: Literal["none", "soft", "hard"] = "none",
    weights: object | None = None,
    valid: object | None = None,
) -> NDArray[Any]:
    """The nearest values that do not fall on the way down: argmin sum w (a - x)^2 with a_parent + margin <= a_child.

    With a radius, each tree is then centred and scaled to |a|^2 <= N (`soft`) or = N (`hard`), N its valid nodes. From
    the ordered projection of Tree-OPO, arXiv:2509.09284, solved exactly by pooling (O(m log^2 m)).

    Args:
        parents: m whole numbers, -1 for a root.
        values: m numbers.
        margin: at least 0.
        radius: see above.
        weights: m positive numbers; None: 1.
        valid: m booleans; nodes that are False are skipped (their children hang on the next valid node above) and get
            0.

    Returns:
        `float32[m]` for float32 values, else `float64[m]`.

    Raises:
        InvalidInputError: lengths differ, a valid value is not finite, a weight is not positive or `margin` is
            negative.

    Example:
        >>> from agentrl_core import tree
        >>> tree.isotonic([-1, 0, 0], [1.0, 0.0, 3.0]).tolist()
        [0.5, 0.5, 3.0]
    """
    given = columns.numbers(values, "values")
    count = len(given)
    made = _core.tree.isotonic(
        columns.integers(parents, "parents"),
        columns.doubles(given, "values"),
        margin=margin,
        radius=radius,
        weights=columns.optional_numbers(weights, "weights", length=count),
        valid=columns.mask(valid, "valid", length=count),
    )
    return columns.like(made, given)


def _indices(values: object, name: str, length: int) -> NDArray[np.uint32]:
    """Rows of a table whose length the core knows."""
    found = columns.column(values, name)
    if found.dtype == np.uint32 and len(found) == length:
        return np.require(found, requirements=("C", "A"))
    rows = columns.integers(values, name, length=length)
    outside = np.flatnonzero(rows >> 32)
    if len(outside):
        place = int(outside[0])
        raise InvalidInputError(f"{name}[{place}] is {rows[place]}; give the row of a node")
    return rows.astype(np.uint32)
