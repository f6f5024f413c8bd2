"""Conclusions of `make bench-compare` from the times of two sides."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_compare", BENCH / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_mean_of_ratios_is_the_geometric_one(compare: ModuleType) -> None:
    # 8 / 2 = 4, 1 / 1 = 1 and 6 / 3 = 2: the geometric mean is the third root of 8.
    mean, low, high = compare.ratio(np.array([8.0, 1.0, 6.0]), np.array([2.0, 1.0, 3.0]))
    assert mean == pytest.approx(2.0)
    assert low < 1.0
    assert high > 4.0, "three rounds say little"


@given(st.floats(0.2, 5.0), st.integers(8, 30), st.integers(0, 2**32 - 1))
def test_a_machine_that_changes_its_speed_changes_no_ratio(
    compare: ModuleType, factor: float, rounds: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    speed = np.exp(rng.normal(0, 1.0, rounds))  # noise of the machine, equal for both sides of a round
    head = 10.0 * speed
    mean, low, high = compare.ratio(factor * head, head)
    assert (mean, low, high) == pytest.approx((factor,) * 3)


def test_an_interval_holds_the_truth_nineteen_times_in_twenty(compare: ModuleType) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        base, head = np.exp(rng.normal(0.0, 0.3, (2, 10)))
        _, low, high = compare.ratio(1.5 * base, head)
        covered += low <= 1.5 <= high
    # 190 of 200 are expected, with a standard error of 3.1: four of them on either side.
    assert 178 <= covered <= 200


def test_times_are_ours_by_line(compare: ModuleType) -> None:
    line = {"work": "1 M", "peer": "NumPy", "ours_ms": 2.0, "peer_ms": 8.0, "ratio": 4.0}
    times = compare.times_of({"lines": [line, {**line, "ours_ms": 3.0}, {"work": "x", "skipped": "no peer"}]})
    assert times == {"1 M, NumPy #1 ours": 2.0, "1 M, NumPy #2 ours": 3.0}


def test_the_table_marks_faster_and_slower_benchmarks(compare: ModuleType) -> None:
    base = [{"a": 2.0 + 0.01 * turn, "b": 1.0, "c": 1.0, "gone": 1.0} for turn in range(6)]
    head = [{"a": 1.0, "b": 1.0 + 0.01 * (-1) ** turn, "c": 3.0 - 0.01 * turn} for turn in range(6)]
    _, *lines = compare.table(base, head)
    assert ["faster" in line for line in lines] == [True, False, False]
    assert ["SLOWER" in line for line in lines] == [False, False, True]
    with pytest.raises(SystemExit, match="no time"):
        compare.table([{"a": 1.0}], [{"b": 1.0}])
