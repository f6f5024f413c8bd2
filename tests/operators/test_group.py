"""Compare group statistics and normalisation with float64 references, in any order, on any number of threads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentrl_core as arl
from agentrl_core import advantage, group, keys
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators.group.baseline import decayed_beta, ema_mean, running_moments, shrunk_mean, window_quantile
from agentrl_core.operators.group.distributed import PartialStatistics
from agentrl_core.operators.group.reduce import arg_extreme

number = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.1]),
    st.floats(-1e3, 1e3),
    st.floats(-10, 10).map(lambda value: value * 1e300),
    st.floats(-10, 10).map(lambda value: value * 1e-300),
    st.floats(-10, 10).map(lambda value: value + 1e12),
)
rows_of_groups = st.lists(st.tuples(number, st.integers(0, 5), st.booleans()), max_size=40)


def columns(rows: list[tuple[float, int, bool]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values (NaN if invalid), ids, validity."""
    values = np.array([value if valid else math.nan for value, _, valid in rows], dtype=np.float64)
    ids = np.array([group_id for _, group_id, _ in rows], dtype=np.int64)
    return values, ids, np.array([valid for *_, valid in rows], dtype=bool)


@settings(deadline=None)
@given(rows_of_groups, st.sampled_from([0, 1]))
def test_statistics_equal_numpy(rows: list[tuple[float, int, bool]], ddof: int) -> None:
    values, ids, valid = columns(rows)
    statistics = group.statistics(values, ids, ddof=ddof, valid=valid)
    dense = keys.dense(ids)
    for place in range(len(statistics.count)):
        members = values[(dense == place) & valid]
        assert statistics.count[place] == len(members)
        if len(members) == 0:
            assert np.isnan([statistics.mean[place], statistics.std[place], statistics.least[place]]).all()
            continue
        size = np.abs(members).max()
        size = size if size > 0 else 1.0
        assert abs(statistics.mean[place] / size - (members / size).mean()) < 1e-14
        assert (statistics.least[place], statistics.most[place]) == (members.min(), members.max())
        if len(members) > ddof:
            assert abs(statistics.std[place] / size - (members / size).std(ddof=ddof)) < 1e-13


@settings(deadline=None, max_examples=20)
@given(rows_of_groups, st.integers(0, 2**32 - 1), st.sampled_from(["mean", "median", "leave_one_out"]))
def test_any_order_and_any_number_of_threads_give_the_same_bits(
    rows: list[tuple[float, int, bool]], seed: int, center: str
) -> None:
    values, ids, valid = (np.tile(column, 70_000 // max(len(rows), 1)) for column in columns(rows))  # many pieces
    order = np.random.default_rng(seed).permutation(len(values))
    threads = arl.num_threads()
    results = []
    try:
        for count, selected in [(1, slice(None)), (2, slice(None)), (4, order)]:
            arl.set_num_threads(count)
            normalised = np.full(len(values), 7.0)
            normalised[selected] = group.normalise(
                values[selected], ids[selected], center=center, valid=valid[selected]
            )
            results.append(normalised.tobytes())
    finally:
        arl.set_num_threads(threads)
    assert len(set(results)) == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=30))
def test_a_weight_is_a_number_of_equal_rows(rows: list[tuple[float, int, int]]) -> None:
    values, ids, weights = (np.array(column) for column in zip(*rows, strict=True))
    statistics = group.statistics(values, ids, weights=weights, ddof=0)
    dense = keys.dense(ids)
    for place in range(len(statistics.count)):
        repeated = np.repeat(values[dense == place], weights[dense == place])
        assert statistics.weight[place] == len(repeated)
        if len(repeated):
            assert statistics.mean[place] == pytest.approx(repeated.mean(), abs=1e-12)
            assert statistics.std[place] == pytest.approx(repeated.std(), abs=1e-12)


def test_splitting_a_rollout_into_rows_changes_nothing() -> None:
    """Peers count a trajectory once per row it was cut into; with its id as unit it votes once."""
    rewards, ids = np.array([1.0, 0.0, 0.25]), np.array([5, 5, 5])
    unsplit = group.normalise(rewards, ids)
    for cuts in ([3, 1, 1], [1, 4, 2]):
        rows = np.repeat(np.arange(3), cuts)
        split = group.normalise(rewards[rows], ids[rows], voter_ids=rows)
        np.testing.assert_array_equal(split, unsplit[rows])


def test_invalid_rows_neither_vote_nor_dilute() -> None:
    rewards = np.array([1.0, 0.0, np.nan, np.inf, 1.0])
    valid = np.isfinite(rewards)
    result = group.normalise(rewards, np.zeros(5, np.int64), valid=valid)
    np.testing.assert_array_equal(result[valid], group.normalise(rewards[valid], np.zeros(3, np.int64)))
    assert not result[~valid].any()


def test_components_are_normalised_each_by_itself() -> None:
    rewards = np.array([[1.0, 5.0], [0.0, 5.0], [0.5, 7.0]])
    result = group.normalise(rewards, ["a", "a", "a"])
    for component in range(2):
        np.testing.assert_array_equal(result[:, component], group.normalise(rewards[:, component], ["a", "a", "a"]))
    valid = np.array([[True, True], [True, False], [True, True]])
    result = group.normalise(rewards, ["a", "a", "a"], valid=valid)
    np.testing.assert_array_equal(result[:, 1], group.normalise(rewards[:, 1], ["a", "a", "a"], valid=valid[:, 1]))


def test_out_is_filled() -> None:
    values = np.array([1.0, 3.0], dtype=np.float32)
    out = np.empty(2, dtype=np.float32)
    assert group.normalise(values, [0, 0], scale="none", out=out) is out
    assert out.tolist() == [-1.0, 1.0]
    table = np.empty((2, 1), dtype=np.float32)
    assert group.normalise(values[:, None], [0, 0], scale="none", out=table) is table
    with pytest.raises(InvalidInputError, match="out is not a contiguous array of 2 values"):
        group.normalise(values, [0, 0], out=np.empty(3, dtype=np.float32))
    with pytest.raises(InvalidInputError, match="out is read-only, or also an input"):
        group.normalise(values, [0, 0], out=values)


NAIVE = {
    "roll": (1, lambda s: None if s <= 1e-6 else s + 1e-6, 0.0),
    "skyrl": (1, lambda s: s + 1e-6, None),
    "trl-sync": (1, lambda s: s + 1e-4, 0.0),
    "trl-async": (0, lambda s: s + 1e-8, 0.0),
    "openrlhf": (1, lambda s: s + 1e-9, 0.0),
    "rllm": (0, lambda s: s + 1e-6, None),
    "art": (0, lambda s: s + 1e-6, 0.0),
    "prime-rl": (1, lambda _: 1.0, 0.0),
    "torchrl": (1, lambda s: max(s, 1e-6), 0.0),
    "trinity-stepwise": (1, lambda s: s + 1e-6, None),
    "rlinf": (1, lambda s: s + 1e-6, 0.0),
    "slime": (1, lambda s: s + 1e-6, 0.0),
    "tree-grpo/prompt": (1, lambda s: s + 1e-6, None),
}


@pytest.mark.parametrize("name", sorted(NAIVE))
def test_rules_of_other_projects_as_they_are_written_there(name: str) -> None:
    """Rules are transcribed: deviations' ddof, the divisor, and the value for a group of one (None: x over it)."""
    ddof, divisor, alone = NAIVE[name]
    rng = np.random.default_rng(3)
    sizes = [1, 2, 3, 8, 5]
    ids = np.repeat(np.arange(len(sizes)), sizes)
    rewards = rng.normal(size=len(ids))
    rewards[ids == 2] = 0.7
    rewards[ids == 4] = 0.7 + 1e-9 * rng.normal(size=5)
    expected = np.zeros(len(ids))
    for group_id in range(len(sizes)):
        members = rewards[ids == group_id]
        if len(members) == 1:
            expected[ids == group_id] = members / divisor(1.0) if alone is None else alone
        elif (by := divisor(members.std(ddof=ddof))) is not None:
            expected[ids == group_id] = (members - members.mean()) / by
    expected[ids == 2] = 0.0  # rounding errors of equal rewards, which others divide by eps
    result = group.normalise(rewards, ids, **advantage.compat(name))
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(InvalidInputError, match="compat: name is 'verl-1'"):
        advantage.compat("verl-1")


def test_ranks_together_give_the_bits_of_one() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=999) * 10.0 ** rng.integers(-200, 200, size=999)
    ids, weights = rng.integers(0, 7, size=999), rng.random(999)
    for weighting in (None, weights):
        parts = np.array_split(rng.permutation(999), 3)

        def of(rows: np.ndarray, weighting: np.ndarray | None = weighting) -> dict[str, object]:
            return {"weights": None if weighting is None else weighting[rows]}

        extents = [PartialStatistics.of(values[rows], ids[rows], 7, **of(rows)) for rows in parts]
        total = PartialStatistics(
            count=sum(extent.count for extent in extents),
            least=np.minimum.reduce([extent.least for extent in extents]),
            most=np.maximum.reduce([extent.most for extent in extents]),
            heaviest=np.maximum.reduce([extent.heaviest for extent in extents]),
        )
        sums = [total.add(values[rows], ids[rows], **of(rows)) for rows in parts]
        statistics = dataclasses.replace(total, moments=sums[2].moments + sums[0].moments + sums[1].moments).finish()
        first = np.unique(ids, return_index=True)[1]
        expected = group.statistics(values, ids, weights=weighting)
        order = keys.dense(ids)[first]
        assert statistics.mean.tobytes() == expected.mean[order].tobytes()
        assert statistics.std.tobytes() == expected.std[order].tobytes()
    with pytest.raises(InvalidInputError, match="moments is None; call finish on the result of add"):
        total.finish()


def test_reductions_equal_numpy() -> None:
    rng = np.random.default_rng(1)
    values, ids = rng.normal(size=60).round(1), rng.integers(0, 6, size=60)
    dense = keys.dense(ids)
    members = [values[dense == place] for place in range(6)]
    for q in (0.0, 0.3, 0.5, 1.0):
        for interpolation in ("linear", "lower", "higher", "nearest", "midpoint"):
            expected = [np.quantile(group_values, q, method=interpolation) for group_values in members]
            np.testing.assert_allclose(group.quantile(values, ids, q, interpolation=interpolation), expected)
    softmax = [np.exp(group_values / 0.5) / np.exp(group_values / 0.5).sum() for group_values in members]
    ranks = [np.argsort(np.argsort(group_values, kind="stable"), kind="stable") for group_values in members]
    for place in range(6):
        np.testing.assert_allclose(group.softmax(values, ids, temperature=0.5)[dense == place], softmax[place])
        np.testing.assert_array_equal(group.rank(values, ids)[dense == place], ranks[place])
    np.testing.assert_allclose(group.sums(values, ids), [group_values.sum() for group_values in members])
    best = arg_extreme(values, ids)
    assert all(values[row] == group_values.max() for row, group_values in zip(best, members, strict=True))


def test_states_survive_json_and_batches() -> None:
    import json

    state: dict[str, float] = {}
    for batch in ([1.0, 0.0], [1.0, 1.0]):
        baseline, state = ema_mean(json.loads(json.dumps(state)), batch, ["role", "role"], decay=0.9, initial=0.5)
    assert baseline.tolist() == pytest.approx([0.5, 0.5])
    assert state == {"role": pytest.approx(0.55)}
    assert ema_mean({}, [1.0], [3], decay=0.9, update="before")[0].tolist() == pytest.approx([0.1])
    with pytest.raises(InvalidInputError, match="decay is 2"):
        ema_mean({}, [1.0], [3], decay=2.0)
    past: dict[str, list[float]] = {}
    history = [[0.0, 1.0], [1.0, 3.0], [2.0, 2.0]]
    for batch in history:
        mean, std, visits, past = running_moments(json.loads(json.dumps(past)), batch, [7, 7])
    assert (mean[0], visits[0]) == (pytest.approx(np.mean([0.5, 2.0, 2.0])), 3)
    assert std[0] ** 2 == pytest.approx(np.mean(np.var(history, axis=1, ddof=1)) + np.var([0.5, 2.0, 2.0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group.normalise([1.0], [1], center="mode"), 'center is "mode"; use "none", "mean", "median"'),
        (lambda: group.normalise([1.0], [1], eps=-1.0), "eps is -1; give a finite number of at least 0"),
        (lambda: group.normalise([1.0], [1], ddof=2), "ddof is 2; use 1"),
        (lambda: group.normalise([1.0], [1], baseline=[1.0]), "baseline is given, but center is not"),
        (lambda: group.normalise([1.0, 2.0], [1, 1], weights=[1.0]), "weights has 1 rows"),
        (lambda: group.normalise([1.0], [1], weights=[-1.0]), r"weights\[0\] is -1"),
        (lambda: group.normalise(np.zeros((1, 1, 1)), [1]), r"values has shape \(1, 1, 1\)"),
        (lambda: shrunk_mean([1.0], [1], [0.5], variance=0.0), "variance is 0"),
        (lambda: window_quantile([], [1.0], capacity=0), "capacity is 0"),
        (lambda: decayed_beta({}, [2.0], [1], decay=0.5), "successes of 1 range from 2.0 to 2.0"),
        (lambda: decayed_beta({}, [1.0], [1], decay=1.5), "decay of 1 ranges from 1.5 to 1.5"),
        (lambda: decayed_beta({}, [1.0] * 2, [1, 1], decay=[0.5, 0.6]), "decay of 1 ranges from 0.5 to 0.6"),
        (lambda: decayed_beta({}, [1.0], [1], decay=[0.5, 0.6]), "decay has 2"),
        (lambda: PartialStatistics.of([1.0], [3], 2), r"groups\[0\] is 3, but there are 2 groups"),
        (lambda: PartialStatistics.of([1.0], [-3], 2), r"ids\[0\] is -3"),
        (lambda: arl.set_num_threads(0), "threads is 0; give 1 or more"),
    ],
)
def test_invalid_arguments_are_reported(call: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


def numpy_moments(
    past: dict[str, list[float]], values: np.ndarray, ids: list[str], ddof: int
) -> dict[str, list[float]]:
    """Compute the stored moments of each key, by the formula and one key after another."""
    after = dict(past)
    for name in dict.fromkeys(ids):
        rows = values[[key == name for key in ids]]
        visits, mean, std = past.get(name, [0.0, 0.0, 0.0])
        batch_std = rows.std(ddof=ddof) if len(rows) > ddof else 0.0
        total = visits + 1
        squares = visits * std**2 + batch_std**2 + visits / total * (rows.mean() - mean) ** 2
        after[name] = [total, (visits * mean + rows.mean()) / total, math.sqrt(squares / total)]
    return after


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", "c", "ä"])), min_size=1, max_size=30),
    st.sampled_from([0, 1]),
    st.floats(0.0, 1.0),
)
def test_running_statistics_follow_their_formulas(rows: list[tuple[int, str]], ddof: int, decay: float) -> None:
    values, ids = np.array([value / 4 for value, _ in rows]), [name for _, name in rows]
    past = {"b": [2.0, 0.5, 0.25], "gone": [1.0, 1.0, 0.0]}
    mean, std, visits, after = running_moments(past, values, ids, ddof=ddof)
    expected = numpy_moments(past, values, ids, ddof)
    assert list(after) == list(expected)
    for name, known in expected.items():
        assert after[name] == pytest.approx(known)
    reported = np.array([after[name] for name in ids])
    assert (reported == np.stack([visits, mean, std], axis=1)).all()
    baseline, means = ema_mean({"b": 3.0, "gone": 9.0}, values, ids, decay=decay, initial=1.0)
    rates, counts = decayed_beta({"b": [1.0, 3.0], "gone": [0.0, 0.0]}, values, ids, decay=decay)
    for name in dict.fromkeys(ids):
        members = values[[key == name for key in ids]]
        b, (won, lost) = {"b": (3.0, (1.0, 3.0))}.get(name, (1.0, (0.0, 0.0)))
        assert means[name] == pytest.approx(decay * b + (1.0 - decay) * members.mean())
        lost_now = len(members) - members.sum()
        assert counts[name] == pytest.approx([decay * won + members.sum(), decay * lost + lost_now])
    assert baseline.tolist() == [3.0 if name == "b" else 1.0 for name in ids]
    assert rates.tolist() == [0.25 if name == "b" else 0.5 for name in ids]
    assert (means["gone"], counts["gone"]) == (9.0, [0.0, 0.0])


class Past(Mapping[str, float]):
    """A state that is not a dict."""

    def __getitem__(self, name: str) -> float:
        return {"1": 5.0}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(["1"])

    def __len__(self) -> int:
        return 1


def test_keys_and_states_of_any_kind() -> None:
    """Keys are compared as text: 1 in a list, in arrays of any width, in Arrow and in a tuple is the same one."""
    kinds: list[object] = [[1, 2], (1, 2), np.array([1, 2], np.uint8), np.array([1, 2], np.uint32), pa.array([1, 2])]
    for ids in [*kinds, ["1", "2"], pa.array(["1", "2"]), np.array(["1", "2"]), np.array(["1", "2"], object)]:
        baseline, state = ema_mean(Past(), [2.0, 4.0], ids, decay=0.0)
        assert baseline.tolist() == [5.0, 0.0]
        assert state == {"1": 2.0, "2": 4.0}
    state = {"1": 7.0}
    ema_mean(state, [2.0], [1], decay=0.0)
    assert state == {"1": 7.0}
    assert decayed_beta({"1": (1, 3)}, [1.0], [1], decay=np.array([0.5]))[1] == {"1": [1.5, 1.5]}
    for ids, message in [
        (pa.array([1, None]), "ids"),
        ([1.5, 2.0], "ids contains float"),
        (np.array([True, False]), "ids has dtype bool"),
        ([1, 2, 3], "ids has 3 rows"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            ema_mean({}, [1.0, 2.0], ids, decay=0.5)
    with pytest.raises(InvalidInputError, match=r"state\['a'\] would become inf"):
        running_moments({"a": [1.0, -1e200, 0.0]}, [1e200], ["a"])
