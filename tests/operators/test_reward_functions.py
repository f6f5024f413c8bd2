"""Rewards against brute force, fixtures of the papers, and rows that are not valid."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators.group_comparison import max_at_k, rank_agreement, top_gap, win_rates
from agentrl_core.operators.process_rewards import checklist, implicit_rewards, information_gain
from agentrl_core.operators.risk import tail_risk, tracked_quantiles
from agentrl_core.operators.score_shaping import add_noise, excess_penalty
from agentrl_core.operators.success_distance import success_distance
from agentrl_core.operators.votes import answer_clusters, cluster_votes

NAN = math.nan


@given(st.lists(st.sampled_from([0.0, 1.0, 0.5, -3.0]), min_size=1, max_size=7), st.integers(1, 7))
def test_max_at_k_over_all_subsets(rewards: list[float], k: int) -> None:
    k = min(k, len(rewards))
    subsets = list(combinations(range(len(rewards)), k))
    estimate = np.mean([max(rewards[row] for row in subset) for subset in subsets])
    result = max_at_k(rewards, ["g"] * len(rewards), k)
    assert result.sum() / k == pytest.approx(estimate, abs=1e-12)
    for row in range(len(rewards)):
        total = sum(max(rewards[other] for other in subset) for subset in subsets if row in subset)
        assert result[row] == pytest.approx(total / len(subsets), abs=1e-12)
    if len(rewards) > 1 and k > 1:
        less = max_at_k(rewards, ["g"] * len(rewards), k, leave_one_out=True)
        for row in range(len(rewards)):
            others = [value for other, value in enumerate(rewards) if other != row]
            without = np.mean([max(subset) for subset in combinations(others, k - 1)])
            assert less[row] == pytest.approx(result[row] - k / len(rewards) * without, abs=1e-12)


def test_large_groups_need_no_large_binomials() -> None:
    result = max_at_k(np.linspace(0, 1, 5000), np.zeros(5000, np.int64), 64)
    assert np.isfinite(result).all()
    assert result.sum() / 64 == pytest.approx(64 / 65, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans(), st.booleans()), max_size=12))
def test_votes_by_counting(rows: list[tuple[int, int, bool, bool]]) -> None:
    groups, clusters, parsed, valid = ([row[column] for row in rows] for column in range(4))
    votes = cluster_votes(clusters, groups, parsed=np.array(parsed, bool), valid=np.array(valid, bool))
    order = list(dict.fromkeys(groups))
    for row in range(len(rows)):
        all_votes = [other for other in range(len(rows)) if groups[other] == groups[row] and valid[other]]
        cast = [other for other in all_votes if parsed[other]]
        mine = [other for other in cast if clusters[other] == clusters[row]]
        counts = [
            sum(clusters[other] == cluster for other in cast) for cluster in dict.fromkeys(clusters[o] for o in cast)
        ]
        if row in cast:
            assert votes.share[row] == pytest.approx(len(mine) / len(all_votes))
            winner = next(
                c
                for c in dict.fromkeys(clusters[o] for o in cast)
                if sum(clusters[o] == c for o in cast) == max(counts)
            )
            assert votes.winner[row] == (clusters[row] == winner)
        else:
            assert votes.share[row] == 0.0
            assert not votes.winner[row]
        p = np.array(counts) / max(len(all_votes), 1)
        assert votes.entropy[order.index(groups[row])] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-12)
        assert votes.clusters[order.index(groups[row])] == len(counts)


def test_answers_join_the_first_equivalent_one() -> None:
    def close(a: str, b: str) -> bool:
        return abs(float(a) - float(b)) < 1.5

    # Not transitive: the order of rows decides, and representatives are the first members.
    clusters = answer_clusters(["0", "1", "2", None, "0"], ["g", "g", "g", "g", "h"], equivalent=close)
    assert clusters.ids.tolist() == [0, 0, 1, 2, 3]
    assert clusters.parsed.tolist() == [True, True, True, False, True]
    assert answer_clusters(["a", "b", "a"], [1, 1, 1]).ids.tolist() == [0, 1, 0]
    assert answer_clusters([], []).ids.tolist() == []


def test_fixtures_of_the_papers() -> None:
    result = tail_risk(np.arange(6.0), 1.0, 4.0, alpha_low=0.2, alpha_high=0.8)
    np.testing.assert_allclose(result, [-5, -2, -4 / 3, -2 / 3, 0, 0], atol=1e-12)
    daring = tail_risk([5.0], 1.0, 4.0, alpha_low=0.2, alpha_high=0.8, natural_baseline=False, tail="upper")
    np.testing.assert_allclose(daring, [(1.5 / 0.2 + 3 / 0.6) / 2.5])
    flat = tail_risk([2.0, 2.0], 1.0, 4.0, curve=([0.1, 0.9], [2.0, 2.0]))
    np.testing.assert_allclose(flat, [0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(max_at_k([0, 1, 2, 3], [0] * 4, 2), [1, 1, 7 / 6, 1.5])
    np.testing.assert_allclose(max_at_k([0, 1, 2, 3], [0] * 4, 2, leave_one_out=True), [0, 1 / 6, 0.5, 1], atol=1e-15)
    # MARS: 0.5 · (1 - (length - 11) / 2037) if it is negative.
    length = 3000.0
    assert excess_penalty([length], free=2048, full_at=4085, coefficient=0.5)[0] == pytest.approx(
        0.5 * (1 - (length - 11) / 2037)
    )
    # SEED-GRPO's entropies of (4, 4) out of 8.
    votes = cluster_votes([0] * 4 + [1] * 4, [0] * 8)
    assert votes.entropy[0] == pytest.approx(math.log(2))
    assert votes.cluster_entropy[0] == pytest.approx(math.log(2))


def test_a_tracked_quantile_converges() -> None:
    state = None
    random = np.random.default_rng(0)
    for _ in range(400):
        _, state = tracked_quantiles(state, random.normal(size=64), levels=[0.2, 0.5, 0.9], step_size=0.05)
    np.testing.assert_allclose(state, [-0.8416, 0.0, 1.2816], atol=0.15)


def test_rows_that_are_not_valid_may_hold_anything() -> None:
    valid = np.array([True, False, True])
    scores = np.array([1.0, NAN, 0.5], np.float32)
    for result in (
        excess_penalty(scores, free=0.0, full_at=1.0, valid=valid),
        add_noise(scores, seed=1, valid=valid),
        tail_risk(scores, 0.0, 1.0, valid=valid),
        max_at_k(scores, [0, 0, 0], 2, valid=valid),
        top_gap(scores, [0, 0, 0], valid=valid),
    ):
        assert result.dtype == np.float32
        assert result[1] == 0.0
        assert np.isfinite(result).all()
    places = np.array([[0.0], [NAN], [1.0]])
    distances = success_distance(places, [True, True, False], ["g", "g", "g"], valid=valid)
    assert distances.tolist() == [1.0, 0.0, 0.3]


@given(st.permutations(range(8)), st.integers(0, 2**63))
def test_noise_follows_the_names_of_rows(order: list[int], seed: int) -> None:
    ids = np.arange(8) * 7
    for kind in ("uniform", "normal"):
        ours = add_noise(np.zeros(8), seed=seed, ids=ids, kind=kind)
        assert np.array_equal(ours[order], add_noise(np.zeros(8), seed=seed, ids=ids[order], kind=kind))
        assert len(set(ours.tolist())) == 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: excess_penalty([1.0], free=2, full_at=1), "full_at is 1 and free is 2"),
        (lambda: add_noise([1.0], seed=0, kind="pink"), 'kind is "pink"'),
        (lambda: max_at_k([1.0], [0], 2), "group 0 has 1 valid rows"),
        (lambda: win_rates([0], [-1], [1.0], 2), r"second\[0\] is -1"),
        (lambda: win_rates([0], [0], [1.0], 2), "compare two rows"),
        (lambda: answer_clusters([1], [0]), r"answers\[0\] is int"),
        (lambda: tracked_quantiles(None, [], levels=[0.5]), "there is no state yet"),
        (lambda: tail_risk([1.0], 0.0, 1.0, alpha_low=0.9, alpha_high=0.1), "0 < alpha_low < alpha_high"),
        (lambda: information_gain([0.5], [0, 1], [0.0]), "give log-probabilities of at most 0"),
        (lambda: implicit_rewards([1.0], [1.0], offsets=[0, 3]), "offsets end at 3"),
        (lambda: checklist([[True]], [[True]], [0, 1]), "an item cannot depend on itself"),
        (
            lambda: checklist([[True]], [[False, False]], [0, 1]),
            r"satisfied has 1 items \(columns\); give an array whose shape ends in \(1, 1\)",
        ),
        (lambda: success_distance([[0.0]], [True], ["g"], radius=-1.0), "radius is -1"),
    ],
)
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_rank_agreement_over_all_pairs(rows: list[tuple[int, int]]) -> None:
    ordered = [(a, b) for a in rows for b in rows if a[1] < b[1]]
    agreeing = sum(a[0] < b[0] for a, b in ordered)
    other = 0 if len(rows) == 2 else sum(a[0] > b[0] for a, b in ordered)
    expected = (agreeing - other) / len(ordered) if ordered else 0.0
    scores, truths = [float(a) for a, _ in rows], [float(b) for _, b in rows]
    assert rank_agreement(scores, truths, [0, len(rows)]).tolist() == [expected]


def test_rank_agreement_of_missing_or_invalid_values() -> None:
    assert rank_agreement([1.0, NAN, 2.0, 3.0], [1.0, 2.0, 1.0, 2.0], [0, 2, 4]).tolist() == [0.0, 1.0]
    with pytest.raises(InvalidInputError, match=r"truths\[1\] is NaN, but must be finite"):
        rank_agreement([1.0, 2.0], [1.0, NAN], [0, 2])
    with pytest.raises(InvalidInputError, match="offsets go from 0 to 1, but scores has 2 values; give offsets"):
        rank_agreement([1.0, 2.0], [1.0, 2.0], [0, 1])


@given(
    st.lists(st.tuples(st.sampled_from(["1", "1.0", "2", "01", "", None]), st.integers(0, 2)), max_size=20),
    st.booleans(),
)
def test_answers_join_the_first_that_they_equal(rows: list[tuple[str | None, int]], numeric: bool) -> None:
    """Row by row, by definition; the predicate is called once for each pair of different texts."""
    compared: list[tuple[str, str]] = []

    def same(a: str, b: str) -> bool:
        compared.append((a, b))
        return bool(a) and bool(b) and float(a) == float(b)

    expected: list[int] = []
    openers: list[tuple[int, str | None]] = []
    for answer, place in rows:

        def joins(opener: tuple[int, str | None], answer: str | None = answer, place: int = place) -> bool:
            if opener[0] != place or opener[1] is None or answer is None:
                return opener == (place, answer)
            return opener[1] == answer or (numeric and bool(answer and opener[1]) and float(opener[1]) == float(answer))

        cluster = next((number for number, opener in enumerate(openers) if joins(opener)), len(openers))
        if cluster == len(openers):
            openers.append((place, answer))
        expected.append(cluster)
    answers, groups = [answer for answer, _ in rows], [place for _, place in rows]
    clusters = answer_clusters(answers, groups, equivalent=same if numeric else None)
    assert clusters.ids.tolist() == expected
    assert clusters.parsed.tolist() == [answer is not None for answer in answers]
    per_group = {(place, answer) for answer, place in rows}
    assert len(compared) <= len(per_group) ** 2


def test_answers_of_any_characters() -> None:
    """A lone surrogate is not Unicode, and equals itself; a text that ends in a zero differs from the one without."""
    assert answer_clusters(["\ud800", "\ud801", "\ud800", "a\0", "a"], [0] * 5).ids.tolist() == [0, 1, 0, 2, 3]


def test_marks_are_booleans_or_0_and_1() -> None:
    steps = [[False, False], [True, False], [True, True]]
    tables = [steps, np.array(steps), np.array(steps, np.uint8), np.array(steps).T.copy().T]
    for table in tables:
        assert checklist(table, [[0, 0], [1, 0]], [0, 3]).earned.tolist() == [[0, 0], [1, 0], [0, 1]]
    with pytest.raises(InvalidInputError, match=r"satisfied\[\d, \d\] is .*; give booleans, or 0 and 1"):
        checklist([[2]], [[0]], [0, 1])


def test_rows_of_comparisons_exist() -> None:
    for first in ([-1], [3], [2**40]):
        with pytest.raises(InvalidInputError, match=rf"first\[0\] is {first[0]}, but there are 3 rows"):
            win_rates(first, [0], [1.0], 3)
