"""Task selection and the admission of groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from agentrl_core import select
from agentrl_core.env import Task
from agentrl_core.exceptions import InvalidInputError, RecipeError


def pool(size: int) -> select.Pool:
    return select.Pool([("world", Task(f"task {row}", "?", "sums", None)) for row in range(size)])


def chosen(size: int, count: int, *, key: int, taken: Sequence[int] = ()) -> list[int]:
    request = select.SelectionRequest(count, 8, min(len(taken), 1), np.array(taken, np.int64), 0)
    selection = select.Uniform().choose(pool(size), {}, request, key)
    selection.check(size, "Uniform")
    assert selection.rows.dtype == np.int64
    assert selection.counts.tolist() == [8] * len(selection)
    return selection.rows.tolist()


def test_uniform_selects_distinct_tasks_by_key_and_continues_after_taken_ones() -> None:
    first = chosen(50, 20, key=1)
    assert len(set(first)) == 20
    assert min(first) >= 0
    assert max(first) < 50
    assert first == chosen(50, 50, key=1)[:20]
    assert [*first, *chosen(50, 5, key=1, taken=first)] == chosen(50, 25, key=1)
    assert first != chosen(50, 20, key=2)
    assert chosen(50, 9, key=3, taken=chosen(50, 45, key=3)) == chosen(50, 50, key=3)[45:], "there are no more"


def test_uniform_is_uniform() -> None:
    counts = np.zeros(10)
    for key in range(2000):
        counts[chosen(10, 3, key=key)] += 1
    expected, spread = 600.0, np.sqrt(2000 * 0.3 * 0.7)
    assert (np.abs(counts - expected) < 4 * spread).all()


def test_uniform_refuses_more_tasks_than_there_are() -> None:
    with pytest.raises(InvalidInputError, match="6 tasks cannot be chosen from a pool of 5"):
        chosen(5, 6, key=0)


def test_groups_that_differ_are_admitted() -> None:
    nan = np.nan
    scores = np.array([1.0, 0.0, 1.0, 0.0, nan, 0.5, nan, 0.0, 1.0, nan], dtype=np.float32)
    groups = np.array([0, 1, 0, 1, 1, 2, 3, 4, 4, 4], dtype=np.uint32)
    component = select.DynamicSampling(max_rounds=3)
    # all 1; all 0 beside an invalid one; one alone; none valid; 0 and 1
    assert component(scores, groups).tolist() == [False, False, True, False, True]
    assert select.DynamicSampling(select.Band())(scores, groups).tolist() == [False, False, False, False, True]
    assert component.rounds == 3
    assert select.AcceptAll()(scores, groups).tolist() == [True] * 5
    assert select.AcceptAll().rounds == 1


def test_no_groups() -> None:
    empty = np.zeros(0), np.zeros(0, dtype=np.uint32)
    assert select.DynamicSampling()(*empty).tolist() == []


def test_admission_refuses_lengths_that_differ() -> None:
    with pytest.raises(InvalidInputError, match=r"scores has shape \(2,\) and groups has shape \(1,\)"):
        select.AcceptAll()(np.zeros(2), np.zeros(1, dtype=np.uint32))


def test_max_rounds_is_at_least_one() -> None:
    with pytest.raises(RecipeError, match="max_rounds=0"):
        select.DynamicSampling(max_rounds=0)


@pytest.mark.parametrize(
    "options", [{}, {"std_above": 0.4, "ddof": 1}, {"std_above": None, "at_least": 0.2, "at_most": 0.7}]
)
def test_a_band_of_groups(options: dict[str, float | None]) -> None:
    rng = np.random.default_rng(5)
    scores, groups = rng.integers(0, 2, size=60).astype(float), rng.permutation(np.arange(60) % 20).astype(np.uint32)
    scores[rng.random(60) < 0.2] = np.nan
    expected = []
    for group in range(20):
        group_scores = scores[(groups == group) & np.isfinite(scores)]
        std = group_scores.std(ddof=options.get("ddof", 0)) if len(group_scores) > 1 else 0.0
        bound = options.get("std_above", 0.0)
        in_band = len(group_scores) >= 2 and options.get("at_least", 0.0) <= group_scores.mean() <= options.get(
            "at_most", 1.0
        )
        expected.append(in_band and (bound is None or std > bound))
    assert 0 < sum(expected) < 20
    band = select.Band(members_at_least=2, **options)
    assert select.DynamicSampling(band)(scores, groups).tolist() == expected
    members = band.holds(scores, groups, valid=scores != 1.0)
    assert not members[scores == 1.0].any()


def test_a_band_that_is_not_possible() -> None:
    for options, message in (
        ({"at_least": 0.9, "at_most": 0.1}, r"option at_least=0\.9 is not possible; give a number up to at_most=0\.1"),
        ({"std_above": -1.0}, r"option std_above=-1\.0"),
        ({"members_at_least": 0}, "option members_at_least=0"),
        ({"ddof": 2}, "option ddof=2"),
    ):
        with pytest.raises(RecipeError, match=message):
            select.Band(**options)
