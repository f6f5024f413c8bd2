"""Weights: denominators that are invariant to splits of rows, selectors against NumPy, fixtures of the papers."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import weight
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.weight.denominators import constant_denominator, sequence_mean, share_weights, token_mean, turn_mean
from agentrl_core.weight.importance import importance_weights, trust_region
from agentrl_core.weight.select import above_quantile, max_variance_subset, top_rows

SCORES = st.lists(st.sampled_from([0.0, 1.0, 0.5, -2.0, 1e9, -1e-9]), max_size=12)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=8), st.data())
def test_splitting_a_rollout_into_rows_changes_no_weight(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    """The regression of public trainers in which a rollout of more rows has more weight (verl#7580, slime#2300)."""
    rollouts, lengths = [row[0] for row in rows], [row[1] for row in rows]
    cuts = [data.draw(st.integers(0, length)) for length in lengths]
    split_lengths = [part for length, at in zip(lengths, cuts, strict=True) for part in (at, length - at)]
    split_rollouts = [rollout for rollout in rollouts for _ in range(2)]
    for unsplit, split in (
        (token_mean(lengths), token_mean(split_lengths)),
        (
            sequence_mean(lengths, rollout_ids=rollouts),
            sequence_mean(split_lengths, rollout_ids=split_rollouts),
        ),
        (
            constant_denominator(lengths, 9.0, rollout_ids=rollouts),
            constant_denominator(split_lengths, 9.0, rollout_ids=split_rollouts),
        ),
    ):
        assert np.array_equal(unsplit, split)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=7))
def test_turn_mean_by_definition(rows: list[tuple[int, int, bool]]) -> None:
    trajectories, lengths, valid = ([row[column] for row in rows] for column in range(3))
    weights = turn_mean(lengths, trajectories, valid=np.array(valid, bool))
    counted = [row for row in range(len(rows)) if valid[row] and lengths[row]]
    expected = []
    for row in range(len(rows)):
        turns = sum(trajectories[other] == trajectories[row] for other in counted)
        one = 1 / lengths[row] / turns / len({trajectories[other] for other in counted}) if row in counted else 0.0
        expected += [one] * lengths[row]
    np.testing.assert_allclose(weights, expected, rtol=1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=12, unique_by=lambda row: row[:2])
)
def test_shares_of_a_step_add_up(rows: list[tuple[int, int, bool]]) -> None:
    rows = sorted(rows)
    draws, steps = [row[0] for row in rows], [row[1] for row in rows]
    alive = {draw: any(ok for other, _, ok in rows if other == draw) for draw in draws}
    valid = np.array([alive[draw] for draw in draws], bool)
    for shared in ("each", "split", "owner"):
        weights = share_weights(steps, draws, shared=shared, valid=valid)
        for step in steps:
            mine = [row for row in range(len(rows)) if steps[row] == step and valid[row]]
            expected = len(mine) if shared == "each" else float(bool(mine))
            assert weights[mine].sum() == pytest.approx(expected)
        assert not weights[~valid].any()


@given(SCORES, st.floats(0, 1), st.sampled_from(["linear", "lower", "higher", "nearest", "midpoint"]), st.booleans())
def test_above_quantile_as_numpy(scores: list[float], q: float, method: str, strict: bool) -> None:
    mask = above_quantile(np.array(scores, float), q=q, interpolation=method, strict=strict)
    if scores:
        threshold = np.quantile(scores, q, method=method)
        close = np.abs(np.array(scores) - threshold) <= 1e-9 * max(1.0, abs(threshold))
        expected = np.array(scores) > threshold
        assert np.array_equal(mask[~close], expected[~close])
        if method in ("lower", "higher", "nearest"):
            assert np.array_equal(mask, expected if strict else np.array(scores) >= threshold)


@given(SCORES, st.integers(0, 5))
def test_max_variance_subset_is_the_best_of_all(scores: list[float], count: int) -> None:
    scores = [max(min(score, 5.0), -5.0) for score in scores]
    mask = max_variance_subset(np.array(scores, float), count=count)
    size = min(count, len(scores))
    assert mask.sum() == size
    if size:
        best = max(np.var(choice) for choice in combinations(scores, size))
        assert np.var(np.array(scores)[mask]) == pytest.approx(best, abs=1e-9)


def test_selection_ignores_invalid_rows_and_respects_groups() -> None:
    scores, valid = np.array([math.nan, 1.0, 2.0, 3.0, math.inf]), np.array([False, True, True, True, False])
    assert top_rows(scores, ["a", "a", "b", "b", "b"], count=1, valid=valid).tolist() == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert top_rows(scores, count=1, largest=False, valid=valid).tolist() == [False, True, False, False, False]
    assert above_quantile(scores, q=0.5, valid=valid).tolist() == [False, False, True, True, False]
    assert max_variance_subset(scores, count=2, valid=valid).tolist() == [False, True, False, True, False]
    tokens = top_rows([3.0, 1.0, 2.0, 5.0, 4.0], [0, 0, 0, 1, 1], fraction=0.4, rounding="ceil")
    assert tokens.tolist() == [True, False, True, True, False]


def test_prefix_min_is_that_of_its_paper() -> None:
    # MinPRO: the smallest ratio before a token, 1 for the first.
    weights = importance_weights(np.log([0.5, 2.0, 1.0]), [0, 3], level="prefix_min", at_most=None)
    np.testing.assert_allclose(weights, [0.5, 1.0, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: top_rows([1.0]), "give exactly one"),
        (lambda: top_rows([1.0], count=-1), "count is -1"),
        (lambda: top_rows([math.nan], count=1), r"scores\[0\] is NaN"),
        (lambda: above_quantile([1.0], q=2.0), "q is 2"),
        (lambda: importance_weights([1.0], [0, 2]), "offsets end at 2"),
        (lambda: importance_weights([1.0], [0, 1], level="word"), 'level is "word"'),
        (lambda: importance_weights([1.0], [0, 1], at_most=-1.0), "give 0 < at_least <= at_most"),
        (lambda: trust_region([1.0], [0, 1], at_most=0.0, at_least=1.0), "at_least is 1 and at_most 0"),
        (lambda: weight.importance_diagnostics([], [0]), "mask excludes all tokens"),
        (lambda: share_weights([0], [0], shared="all"), 'shared is "all"'),
    ],
)
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()
