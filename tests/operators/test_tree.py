"""Compare tree credit with plain definitions: sets of leaves, prefixes of strings, minima over chains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import tree


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    """Draw parents in any row order, with chains, bushes and several roots."""
    count = draw(st.integers(1, 14))
    above = [draw(st.integers(-1, place - 1)) for place in range(count)]
    order = draw(st.permutations(range(count)))
    parents = [-1] * count
    for place, parent in enumerate(above):
        parents[order[place]] = -1 if parent < 0 else order[parent]
    return parents


@st.composite
def trees_with_rows(draw: st.DrawFn) -> tuple[list[int], list[int], list[float], list[bool]]:
    parents = draw(forests())
    count = draw(st.integers(0, 10))
    nodes = draw(st.lists(st.integers(0, len(parents) - 1), min_size=count, max_size=count))
    values = draw(st.lists(st.sampled_from([0.0, 1.0, 0.1, -3.0, 1e12, 1e-12]), min_size=count, max_size=count))
    valid = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return parents, nodes, [value if ok else float("nan") for value, ok in zip(values, valid, strict=True)], valid


def path(parents: list[int], node: int) -> list[int]:
    """Return the node and its ancestors."""
    nodes = [node]
    while parents[nodes[-1]] >= 0:
        nodes.append(parents[nodes[-1]])
    return nodes


def below(parents: list[int], nodes: list[int], values: list[float], valid: list[bool], node: int) -> list[float]:
    """Return the values of the rows that go through a node."""
    rows = zip(nodes, values, valid, strict=True)
    return [value for at, value, ok in rows if ok and node in path(parents, at)]


@given(trees_with_rows())
def test_leaves_max_min_and_sum_are_those_of_all_rows_below(case: tuple) -> None:
    parents, nodes, values, valid = case
    for kind, reduce in (("leaves", np.mean), ("max", max), ("min", min), ("sum", np.sum)):
        fused = tree.fuse(parents, nodes, values, kind=kind, valid=valid)
        for node in range(len(parents)):
            members = below(parents, nodes, values, valid, node)
            expected = reduce(members) if members else 0.0
            assert fused.values[node] == pytest.approx(expected, rel=1e-12, abs=1e-12)
            assert fused.masses[node] == len(members)


@given(st.lists(st.sampled_from([0.0, 1.0, 0.1, -3.0, 1e3]), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_expectiles_balance_the_deviations_below_and_above(values: list[float], level: float) -> None:
    parents, nodes = [-1, *([0] * len(values))], list(range(1, len(values) + 1))
    fused = tree.fuse(parents, nodes, values, kind="expectile", expectile=level).values[0]
    gaps = np.array(values) - fused
    pull, push = level * gaps[gaps > 0.0].sum(), (1.0 - level) * -gaps[gaps < 0.0].sum()
    assert pull == pytest.approx(push, rel=1e-9, abs=1e-9)
    assert min(values) <= fused <= max(values)
    for kind, extreme in (("min", 0.0), ("children", 0.5), ("max", 1.0)):
        same = tree.fuse(parents, nodes, values, kind="expectile", expectile=extreme).values[0]
        assert same == pytest.approx(tree.fuse(parents, nodes, values, kind=kind).values[0], rel=1e-12)


@given(trees_with_rows())
def test_children_count_once_each(case: tuple) -> None:
    parents, nodes, values, valid = case

    def value(node: int) -> float | None:
        node_values = [value for at, value, ok in zip(nodes, values, valid, strict=True) if ok and at == node]
        children = [value(child) for child in range(len(parents)) if parents[child] == node]
        parts = ([float(np.mean(node_values))] if node_values else []) + [
            child for child in children if child is not None
        ]
        return float(np.mean(parts)) if parts else None

    fused = tree.fuse(parents, nodes, values, kind="children", valid=valid).values
    for node in range(len(parents)):
        assert fused[node] == pytest.approx(value(node) or 0.0, rel=1e-12, abs=1e-12)


@given(trees_with_rows(), st.randoms(use_true_random=False))
def test_no_order_of_rows_or_nodes_changes_a_bit(case: tuple, random: object) -> None:
    parents, nodes, values, valid = case
    moved = list(range(len(parents)))
    random.shuffle(moved)
    rows = list(range(len(nodes)))
    random.shuffle(rows)
    their_parents = [0] * len(parents)
    for node, parent in enumerate(parents):
        their_parents[moved[node]] = -1 if parent < 0 else moved[parent]
    columns = [[moved[nodes[row]] for row in rows], [values[row] for row in rows]]
    their_valid = [valid[row] for row in rows]
    for kind in ("leaves", "children", "sum"):
        ours = tree.fuse(parents, nodes, values, kind=kind, valid=valid)
        theirs = tree.fuse(their_parents, *columns, kind=kind, valid=their_valid)
        assert np.array_equal(ours.values.view(np.int64), theirs.values[moved].view(np.int64))
    ours = tree.ancestor_relative(parents, nodes, values, valid=valid)
    theirs = tree.ancestor_relative(their_parents, *columns, valid=their_valid)
    assert np.array_equal(ours[rows].view(np.int64), theirs.view(np.int64))
    x = np.arange(len(parents)) % 3 * 0.1
    order = np.argsort(moved)
    assert np.array_equal(
        tree.isotonic(parents, x)[order].view(np.int64), tree.isotonic(their_parents, x[order]).view(np.int64)
    )


@settings(max_examples=60)
@given(trees_with_rows(), st.sampled_from(["group_size", "average"]), st.booleans())
def test_ancestor_relative_by_prefixes(case: tuple, weighting: str, skip: bool) -> None:
    """Depth by depth over groups of equal prefixes, as the public code of TreePO does it with strings."""
    parents, nodes, values, valid = case
    result = tree.ancestor_relative(
        parents, nodes, values, weighting=weighting, drop_constant=skip, singleton="raw", valid=valid
    )
    for row in range(len(nodes)):
        if not valid[row]:
            assert result[row] == 0.0
            continue
        total, weights = 0.0, 0.0
        for ancestor in path(parents, nodes[row]):
            members = below(parents, nodes, values, valid, ancestor)
            is_root = parents[ancestor] < 0
            if not is_root and (len(members) < 2 or (skip and min(members) == max(members))):
                continue
            mean = 0.0 if len(members) == 1 else float(np.mean(members))
            weight = len(members) if weighting == "group_size" else 1
            total, weights = total + weight * (values[row] - mean), weights + weight
        assert result[row] == pytest.approx(
            total / weights,
            rel=1e-9,
            abs=1e-12 * max(map(abs, below(parents, nodes, values, valid, path(parents, nodes[row])[-1]))),
        )


@given(forests())
def test_peers(parents: list[int]) -> None:
    paths = [path(parents, node) for node in range(len(parents))]
    for kind, same in (
        ("siblings", lambda a, b: a == b or (parents[a] == parents[b] >= 0)),
        ("depth", lambda a, b: paths[a][-1] == paths[b][-1] and len(paths[a]) == len(paths[b])),
        ("tree", lambda a, b: paths[a][-1] == paths[b][-1]),
    ):
        ids = tree.peers(parents, kind=kind)
        assert all((ids[a] == ids[b]) == same(a, b) for a in range(len(parents)) for b in range(len(parents)))


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), max_size=8))
def test_build_shares_equal_prefixes(paths: list[list[str]]) -> None:
    offsets = np.cumsum([0, *map(len, paths)])
    built = tree.build([element for one in paths for element in one], offsets)
    prefixes = {tuple(one[:end]) for one in paths for end in range(1, len(one) + 1)}
    assert len(built.parents) == len(prefixes)
    ends = {}
    for one, node in zip(paths, built.nodes.tolist(), strict=True):
        assert ends.setdefault(tuple(one), node) == node
        assert len(path(built.parents.tolist(), node)) == len(one)
    assert len(set(ends.values())) == len(ends)


@given(forests(), st.data())
def test_isotonic_is_the_projection(parents: list[int], data: st.DataObject) -> None:
    """The result is feasible, and orthogonal to every move of a whole part of a tree (Karush-Kuhn-Tucker)."""
    x = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=len(parents), max_size=len(parents))), np.float64)
    a = tree.isotonic(parents, x)
    for node, parent in enumerate(parents):
        assert parent < 0 or a[parent] <= a[node] + 1e-12
    # Raising any upper set (with every node all below it) may not bring a closer to x.
    for node in range(len(parents)):
        up_set = [other for other in range(len(parents)) if node in path(parents, other)]
        assert (x - a)[up_set].sum() <= 1e-9
    assert (x - a) @ a == pytest.approx(0.0, abs=1e-9)
    assert (x - a).sum() == pytest.approx(0.0, abs=1e-9)


def test_types_and_errors() -> None:
    assert tree.ancestor_relative([-1, 0, 0], [1, 2], np.array([1, 0], np.float32)).dtype == np.float32
    for call, message in (
        (lambda: tree.peers([0], kind="depth"), r"parents\[0\] is 0, which lies below node 0"),
        (lambda: tree.peers([-1, 5], kind="depth"), r"parents\[1\] is 5; give -1"),
        (lambda: tree.fuse([-1], [1], [1.0]), r"nodes\[0\] is 1, but the tree has 1 nodes"),
        (lambda: tree.fuse([-1], [0], [1.0], kind="mode"), 'kind is "mode"'),
        (lambda: tree.fuse([-1], [0], [1.0], kind="expectile", expectile=2.0), "expectile is 2"),
        (lambda: tree.fuse([-1], [0, 0], [1.0]), "nodes has 2 rows"),
        (lambda: tree.peers([-1], kind="cousins"), 'kind is "cousins"'),
        (lambda: tree.isotonic([-1], [1.0], margin=-1.0), "margin is -1"),
        (lambda: tree.build([1], [0, 0, 1]), r"paths\[0\] is empty"),
        (lambda: tree.ancestor_relative([-1], [0], [float("nan")]), r"values\[0\] is NaN"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()
