"""Compare filters with definitions, and check that they run after the statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import filters

# No mean of these lies on a bound of the band, at which the last digit would decide.
SCORES = [0.0, 1.0, 0.1234567, 0.3123456, 1e9]
ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(SCORES), st.booleans()), max_size=14)


@given(ROWS, st.sampled_from([None, 0.0, 0.2]), st.integers(0, 1), st.integers(1, 3), st.booleans())
def test_bands_of_groups(
    rows: list[tuple[int, float, bool]], std_above: float | None, ddof: int, members: int, single: bool
) -> None:
    groups, scores, valid = ([row[column] for row in rows] for column in range(3))
    is_kept = filters.group_band(
        [score if ok else math.nan for score, ok in zip(scores, valid, strict=True)],
        groups,
        std_above=std_above,
        at_least=0.05,
        at_most=0.9,
        members_at_least=members,
        ddof=ddof,
        accept_single=single,
        valid=np.array(valid, bool),
    )
    for row in range(len(rows)):
        group_scores = [scores[other] for other in range(len(rows)) if groups[other] == groups[row] and valid[other]]
        constant = len(set(group_scores)) < 2
        std = 0.0 if constant else float(np.std(group_scores, ddof=ddof))
        enough = (
            std_above is None or (std > std_above and len(group_scores) > ddof) or (single and len(group_scores) == 1)
        )
        keep = valid[row] and len(group_scores) >= members and enough and 0.05 <= np.mean(group_scores) <= 0.9
        assert is_kept[row] == keep


@given(ROWS, st.integers(1, 5), st.booleans())
def test_rounding_keeps_the_best(rows: list[tuple[int, float, bool]], multiple: int, up: bool) -> None:
    keep = np.array([row[0] > 1 for row in rows], bool)
    scores, valid = np.array([row[1] for row in rows], float), np.array([row[2] for row in rows], bool)
    rounded = filters.round_rows(keep, multiple, scores=scores, up=up, valid=valid)
    kept_count = int((keep & valid).sum())
    more = -(-kept_count // multiple) * multiple
    assert rounded.sum() == (more if up and more <= valid.sum() else kept_count // multiple * multiple)
    assert not rounded[~valid].any()
    # Either no row was added or none was dropped, and no better row is left out.
    added, dropped = rounded & ~keep, keep & valid & ~rounded
    assert not (added.any() and dropped.any())
    if dropped.any() and rounded.any():
        assert scores[dropped].max() <= scores[rounded].min()
    if added.any() and (remaining := valid & ~rounded).any():
        assert scores[added].min() >= scores[remaining].max()


def test_by_hand() -> None:
    assert filters.top_groups([1.0, 0.0, 0.5, 0.4, 9.0], list("aabbc"), 0.7).tolist() == [True] * 4 + [False]
    assert filters.group_band([], []).tolist() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: filters.group_band([1.0], [0], at_least=1.0, at_most=0.0), "at_least is 1 and at_most is 0"),
        (lambda: filters.group_band([math.nan], [0]), r"scores\[0\] is NaN"),
        (lambda: filters.top_groups([1.0], [0], -0.5), "fraction is -0.5"),
        (lambda: filters.round_rows([True], 0), "multiple is 0"),
    ],
)
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()
