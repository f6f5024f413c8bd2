"""The sum tree against exact sums and plain walks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import _core, replay
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.replay.sum_tree import SumTree

PRIORITIES = st.lists(st.integers(1, 2**40), min_size=1, max_size=400)


@settings(max_examples=60, deadline=None)
@given(PRIORITIES, st.data())
def test_an_updated_tree_has_the_exact_total_and_probabilities(numbers: list[int], data: st.DataObject) -> None:
    plain = [float(number) for number in numbers]
    tree = SumTree(plain)
    removed: set[int] = set()
    for _ in range(data.draw(st.integers(0, 5))):
        rows = data.draw(st.lists(st.integers(0, len(plain) - 1), max_size=30))
        if data.draw(st.booleans()):
            tree.remove(rows)
            removed |= set(rows)
            continue
        priorities = [float(data.draw(st.integers(1, 2**40))) for _ in rows]
        tree.update(rows, priorities)
        for row, priority in zip(rows, priorities, strict=True):
            plain[row] = priority
            removed.discard(row)
    remaining = [0 if row in removed else int(priority) for row, priority in enumerate(plain)]
    assert tree.total == float(sum(remaining))  # whole numbers below 2^53: exact
    if sum(remaining):
        rows = np.arange(len(remaining))
        expected = [float(Fraction(priority, sum(remaining))) for priority in remaining]
        assert tree.probabilities(rows).tolist() == pytest.approx(expected, rel=1e-15, abs=0)
        drawn = tree.sample(64, key=data.draw(st.integers(0, 2**62)))
        assert all(remaining[row] > 0 for row in drawn.tolist())


@settings(max_examples=40, deadline=None)
@given(PRIORITIES, st.integers(0, 2**62), st.integers(1, 50), st.booleans())
def test_draws_are_those_of_a_walk_along_all_rows(numbers: list[int], key: int, count: int, stratified: bool) -> None:
    # Powers of two: sums, products and quotients of the targets are exact, so is the walk.
    plain = [float(2 ** (number % 8)) for number in numbers]
    total = sum(plain)
    drawn = SumTree(plain).sample(count, key, stratified=stratified)
    uniform = [_core.rng.uniform(np.array([key], np.uint64), counter)[0] for counter in range(count)]
    for place, row in enumerate(drawn.tolist()):
        target = (place + uniform[place]) / count * total if stratified else uniform[place] * total
        before, after = sum(plain[:row]), sum(plain[: row + 1])
        assert before - 1e-9 <= target <= after + 1e-9


def test_importance_weights_make_the_mean_unbiased() -> None:
    """E[w f] over draws is the mean of f: with P = (1, 3, 4) / 8 and w = 1 / (3 P), sum P w f = (f1 + f2 + f3) / 3."""
    tree = SumTree([1.0, 3.0, 4.0])
    weights = tree.weights([0, 1, 2], beta=1.0, normalise="none")
    assert weights.tolist() == pytest.approx([8 / 3, 8 / 9, 2 / 3])
    f = np.array([5.0, -1.0, 2.0])
    assert (tree.probabilities([0, 1, 2]) * weights * f).sum() == pytest.approx(2.0)
    assert tree.weights([1, 2], beta=1.0, normalise="drawn").tolist() == pytest.approx([1.0, 0.75])
    assert tree.weights([1, 2], beta=1.0, normalise="all").tolist() == pytest.approx([1 / 3, 1 / 4])


def test_removed_rows_do_not_count_in_the_weights() -> None:
    """With row 0 removed twice, P = (3, 4) / 7 and w = 1 / (2 P), so that sum P w f = (f2 + f3) / 2."""
    tree = SumTree([1.0, 3.0, 4.0])
    tree.remove([0])
    tree.remove([0])
    weights = tree.weights([1, 2], beta=1.0, normalise="none")
    assert weights.tolist() == pytest.approx([7 / 6, 7 / 8])
    assert (tree.probabilities([1, 2]) * weights * np.array([-1.0, 2.0])).sum() == pytest.approx(0.5)
    tree.update([0], [1.0])
    assert tree.weights([0, 1, 2], beta=1.0, normalise="none").tolist() == pytest.approx([8 / 3, 8 / 9, 2 / 3])


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), float("-inf")])
def test_an_invalid_priority_is_rejected_and_changes_nothing(wrong: float) -> None:
    tree = SumTree([1.0, 2.0])
    with pytest.raises(InvalidInputError, match=r"priorities\[1\] is .*; give a finite number above 0"):
        tree.update([1, 0], [5.0, wrong])
    with pytest.raises(InvalidInputError, match=r"priorities\[0\]"):
        SumTree([wrong])
    assert tree.total == 3.0
    with pytest.raises(InvalidInputError, match=r"rows\[0\] is 2, but there are 2 rows"):
        tree.update([2], [1.0])
    tree.remove([0, 1])
    with pytest.raises(InvalidInputError, match="no row has a priority"):
        tree.sample(1, key=0)


def test_pairs_by_hand() -> None:
    scores, groups = [0.0, 1.0, 0.5, 1.0, 0.0, 9.0], ["a"] * 5 + ["b"]

    def pairs(**options: object) -> list[tuple[int, int]]:
        better, worse = replay.pairs(scores, groups, **options)  # type: ignore[arg-type]
        return list(zip(better.tolist(), worse.tolist(), strict=True))

    assert pairs() == [(1, 0)]
    assert pairs(matching="disjoint") == [(1, 0), (3, 4)]
    assert pairs(matching="all", margin=0.6) == [(1, 0), (1, 4), (3, 0), (3, 4)]
    assert pairs(matching="all", at_most=2) == [(1, 0), (1, 4)]
    assert pairs(matching="nearest", lengths=[10, 50, 12, 20, 48, 0]) == [(1, 4), (3, 2), (2, 0)]
    with pytest.raises(InvalidInputError, match="lengths is missing"):
        pairs(matching="nearest")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=30), st.sampled_from([0.0, 1.0])
)
def test_all_pairs_are_those_of_two_loops(rows: list[tuple[int, int, bool]], margin: float) -> None:
    scores, groups, valid = ([row[place] for row in rows] for place in range(3))
    better, worse = replay.pairs(scores, groups, matching="all", margin=margin, valid=valid)
    expected = {
        (i, j)
        for i in range(len(rows))
        for j in range(len(rows))
        if groups[i] == groups[j]
        and valid[i]
        and valid[j]
        and scores[i] > scores[j]
        and scores[i] - scores[j] >= margin
    }
    assert len(better) == len(expected)
    assert set(zip(better.tolist(), worse.tolist(), strict=True)) == expected
