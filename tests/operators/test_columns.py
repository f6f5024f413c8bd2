"""Columns whose buffers the core can read are passed unchanged; other inputs with the same numbers are converted."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

TAKEN: list[tuple[Callable[..., Any], str]] = [
    (columns.numbers, "float32"),
    (columns.numbers, "float64"),
    (columns.doubles, "float64"),
    (columns.integers, "int64"),
    (columns.ids, "int64"),
    (columns.ids, "uint32"),
    (columns.mask, "bool"),
]


def as_memmap(column: np.ndarray) -> np.ndarray:
    return column.view(np.memmap)


@pytest.mark.parametrize(("take", "kind"), TAKEN)
def test_a_plain_column_is_not_copied_and_others_are_made_plain(take: Callable[..., Any], kind: str) -> None:
    column = np.array([1, 0, 1, 1, 0]).astype(kind)
    assert take(column, "values") is column
    assert take(column, "values", length=5) is column
    assert take(column[1:], "values", length=4).base is column
    padded = np.zeros(1 + column.nbytes, np.uint8)
    unaligned = padded[1:].view(column.dtype)
    unaligned[:] = column
    big_endian = column.astype(column.dtype.newbyteorder(">"))
    for other in [np.repeat(column, 2)[::2], column[::-1].copy()[::-1], unaligned, big_endian, as_memmap(column)]:
        result = take(other, "values", length=5)
        assert type(result) is np.ndarray
        assert result.dtype == column.dtype
        assert result.flags.c_contiguous
        assert result.flags.aligned
        assert result.tolist() == column.tolist()
    for wrong in [column[:4], column[:, None], column[0]]:
        with pytest.raises(InvalidInputError, match="values has"):
            take(wrong, "values", length=5)


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32"])
def test_numbers_of_other_types_are_copied_to_float64(kind: str) -> None:
    column = np.array([1, 0, 1, 1]).astype(kind)
    for numbers in [column, np.repeat(column, 2)[::2], column.astype(column.dtype.newbyteorder(">")), column.tolist()]:
        result = columns.doubles(numbers, "values", length=4)
        assert result.dtype == np.float64
        assert result.tolist() == [1.0, 0.0, 1.0, 1.0]
        assert not np.shares_memory(result, column)
        with pytest.raises(InvalidInputError, match="values has 4 rows but the first column has 5"):
            columns.doubles(numbers, "values", length=5)
    with pytest.raises(InvalidInputError, match=r"values has shape \(4, 1\)"):
        columns.doubles(column[:, None], "values")


def test_a_type_of_the_same_numbers_is_plain_too() -> None:
    values = np.arange(4, dtype=np.longlong)
    assert columns.integers(values, "values").dtype == np.int64
    annotated = np.arange(4.0).astype(np.dtype(np.float64, metadata={"unit": "s"}))
    assert columns.doubles(annotated, "values").tolist() == [0.0, 1.0, 2.0, 3.0]


def test_arrays_must_have_the_requested_dimensions() -> None:
    table = np.ones((2, 3))
    assert columns.numbers(table, "values", dimensions=(1, 2)) is table
    assert columns.numbers(table, "values", dimensions=(2,), length=2) is table
    assert columns.numbers(table.T, "values", dimensions=(2,)).flags.c_contiguous
    with pytest.raises(InvalidInputError, match=r"values has shape \(2, 3\)"):
        columns.numbers(table, "values")


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_a_result_that_is_not_finite_is_found_at_any_position(kind: type, wrong: float) -> None:
    most = np.finfo(kind).max
    for rows in (0, 1, 7, 64, 131):
        results = np.full(rows, most, kind)
        assert columns.representable(results) is results, "a sum of them would not be finite"
        for row in range(rows):
            results[row] = wrong
            with pytest.raises(InvalidInputError, match=rf"the result at \({row},\) is too large for {results.dtype}"):
                columns.representable(results)
            results[row] = most
    table = np.zeros((3, 5), kind)
    assert columns.representable(table) is table
    table[2, 1] = wrong
    with pytest.raises(InvalidInputError, match=r"the result at \(2, 1\) is too large"):
        columns.representable(table)


@pytest.mark.parametrize(
    ("take", "values", "message"),
    [
        (columns.numbers, [Fraction(1, 2)], "x[0] is Fraction(1, 2); give ints or floats, with NaN in place of None"),
        (
            columns.doubles,
            [1.5, Fraction(1, 2)],
            "x[1] is Fraction(1, 2); give ints or floats, with NaN in place of None",
        ),
        (columns.integers, [Fraction(1, 2)], "x[0] is Fraction(1, 2); give whole numbers without missing values"),
        (columns.mask, [Fraction(1, 2)], "x[0] is Fraction(1, 2); give booleans, True for rows that count"),
        (columns.numbers, [np.nan, 2**70], f"x[1] is {2**70}, beyond 64 bits; give smaller numbers, or floats"),
        (
            columns.numbers,
            [1, -(2**63) - 1],
            f"x[1] is {-(2**63) - 1}, beyond 64 bits; give smaller numbers, or floats",
        ),
        (
            columns.numbers,
            [1.5, 10**5000],
            "x[1] is int with too many digits to print, beyond 64 bits; give smaller numbers, or floats",
        ),
        (
            lambda values, name: columns.numbers(values, name, dimensions=(2,)),
            [[1, 2], [3, 2**70]],
            f"x[1, 1] is {2**70}, beyond 64 bits; give smaller numbers, or floats",
        ),
        (
            lambda values, name: columns.marks(values, name, dimensions=(2,)),
            [[1, 0], [2, 1]],
            "x[1, 0] is 2; give booleans, or 0 and 1",
        ),
        (
            columns.numbers,
            np.array([np.True_, None]),
            "x[1] is None; give ints or floats, with NaN in place of None",
        ),
        (
            columns.integers,
            np.array([np.float32(2), np.float64(1.5), None]),
            "x[1] is 1.5; give whole numbers without missing values",
        ),
        (columns.mask, np.array([np.True_, None]), "x[1] is None; give booleans, True for rows that count"),
    ],
)
def test_the_first_wrong_entry_is_named(take: Callable[..., Any], values: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{re.escape(message)}$"):
        take(values, "x")


def test_the_lowest_int64_is_a_whole_number() -> None:
    assert columns.integers([1, -(2**63)], "x").tolist() == [1, -(2**63)]
