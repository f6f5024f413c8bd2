"""Ingest columns of turns, chats and nodes into a `Forest`: many rows per call, atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core._util.wrong_values import first_wrong, shown
from agentrl_core.data.fact_columns import fact_column
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns as arrays

Lists: TypeAlias = Any
"""A column of lists: an Arrow array of lists of any library and a Polars Series of lists (read in place), a tuple
`(values, offsets)` of NumPy arrays, a two-dimensional array, or a sequence of lists or arrays (None: an empty row)."""

TokenColumn: TypeAlias = Sequence[NDArray[Any] | tuple[int, NDArray[Any]] | None]
"""For each row of a call the rows of a token column, as `Forest.append` takes them; None: it has none."""

Reason: TypeAlias = Literal["stop", "length", "abort"] | None
Role: TypeAlias = Literal["prompt", "action", "observation", "injected", "system", "user", "tool", "assistant"]

DRIFT = ("clean", "realigned", "rewritten", "retokenised", "truncated")
"""Names of the codes of drift."""

_CONTEXT = 4
KINDS = {
    "prompt": 0,
    "action": 1,
    "observation": 2,
    "injected": 3,
    "assistant": 1,
    "system": _CONTEXT,
    "user": _CONTEXT,
    "tool": _CONTEXT,
}
_REASONS = {None: 0, "stop": 1, "length": 2, "abort": 3}
_TYPES: dict[str, Any] = {"i": np.int32, "f": np.float32, "B": np.uint8}
_RAGGED = {"logprobs": "f", "entropies": "f", "trainable": "B", "rewards": "f"}
_FLAT: dict[str, Any] = {
    "policy": np.int32,
    "policy_version": np.int64,
    "seed": np.int64,
    "reward": np.float32,
    "terminated": np.uint8,
    "truncated": np.uint8,
    "flags": np.uint32,
}


@dataclass(frozen=True, slots=True)
class Ingested:
    """Result of ingested turns, one row per turn."""

    nodes: NDArray[np.int64]
    """Handles of the outputs' nodes, `int64[turns]`."""
    drift: NDArray[np.uint8]
    """Agreement of each prompt with earlier turns: codes of `DRIFT`, `uint8[turns]`."""
    drift_at: NDArray[np.int32]
    """Position of the first differing token, -1 without one, `int32[turns]`."""

    def counts(self) -> dict[str, int]:
        """Return the number of turns of each class of drift."""
        counts = np.bincount(self.drift, minlength=len(DRIFT)).tolist()
        return dict(zip(DRIFT, counts, strict=True))


def columns_of(trajectories: object, tokens: Mapping[str, Lists], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all given columns as flat arrays for the core."""
    handles = arrays.integers(trajectories, "trajectories")
    turns: dict[str, Any] = {"trajectories": handles}
    for name, values in tokens.items():
        turns[name] = lists(values, name, "i")
    for name, values in given.items():
        if values is None:
            continue
        if name in _RAGGED:
            turns[name] = lists(values, name, _RAGGED[name])
        elif name in _FLAT:
            turns[name] = _each(values, name, _FLAT[name], len(handles))
        elif name == "state":
            turns[name] = texts(values, name)
        elif name == "facts":
            turns[name] = {fact: fact_column(column, f"facts[{fact!r}]") for fact, column in values.items()}
        elif name == "columns":
            turns[name] = {column: _given(rows, column, len(handles)) for column, rows in values.items()}
        elif name == "finish_reason":
            turns[name] = codes(values, name, _REASONS, len(handles))
        else:
            turns[name] = values
    return turns


def without_known(handles: NDArray[np.int64], prompts: list[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return contexts without the prefix that is their trajectory's previous context, and the lengths removed.

    Python compares lists much faster than it copies them, so the context so far is kept in a list that only grows by
    new tokens.
    """
    rest, known = list(prompts), np.zeros(len(prompts), np.int64)
    before: dict[int, list[int]] = {}
    for row, (handle, prompt) in enumerate(zip(handles.tolist(), prompts, strict=False)):
        if not isinstance(prompt, list):
            before.pop(handle, None)
            continue
        last = before.get(handle, [])
        length = len(last)
        new = prompt[length:]
        last += new
        if length and last == prompt:
            rest[row], known[row] = new, length
        else:
            before[handle] = prompt.copy()
    return rest, known


def _each(values: Any, name: str, dtype: Any, count: int) -> NDArray[Any]:
    """Return one value for every row, or a column of them."""
    wide = arrays.numbers if dtype is np.float32 else arrays.integers
    if dtype is np.uint8 and not np.isscalar(values):
        values = arrays.column(values, name)
        values = values.astype(np.int64) if values.dtype.kind in "fiub" else values
    numbers = wide([values] if np.isscalar(values) else values, name, length=None if np.isscalar(values) else count)
    with np.errstate(over="ignore"):  # what is too large is infinite then, and refused
        narrow = numbers.astype(dtype)
    if dtype is not np.float32 and not np.array_equal(narrow, numbers):
        row = int(np.flatnonzero(narrow != numbers)[0])
        raise InvalidInputError(f"{name}[{row}] is {numbers[row]}; give numbers that fit {np.dtype(dtype)}")
    return np.full(count, narrow[0]) if np.isscalar(values) else np.ascontiguousarray(narrow)


def codes(values: Any, name: str, known: Mapping[Any, int], count: int) -> NDArray[np.uint8]:
    """Return the code of each row's name; `values` has one name for all rows, or one per row."""
    is_single = values is None or isinstance(values, str)
    if isinstance(values, np.ndarray) and values.dtype == np.uint8:
        array = values
    else:
        rows = [values] if is_single else _rows(values, name)
        odd = first_wrong(rows, lambda row: (row is None or isinstance(row, str)) and row in known)
        if odd is not None:
            place = name if is_single else f"{name}[{odd}]"
            raise InvalidInputError(f"{place} is {shown(rows[odd])}; use one of {list(known)}")
        array = np.fromiter(map(known.__getitem__, rows), np.uint8, len(rows))
    if is_single:
        return np.full(count, array[0])
    if len(array) != count:
        raise InvalidInputError(f"{name} has {len(array)} rows, but trajectories has {count}; give one for each")
    return np.ascontiguousarray(array)


def texts(values: Any, name: str) -> Any:
    """Return a column of texts for the core: an Arrow array unchanged, or flat bytes and offsets."""
    if arrays.is_arrow(values) or isinstance(values, tuple):
        return values
    rows = _rows(values, name)
    try:
        texts = [b"" if row is None else arrays.as_bytes(row, name) for row in rows]
    except InvalidInputError:
        for index, row in enumerate(rows):
            arrays.as_bytes(b"" if row is None else row, f"{name}[{index}]")  # names the row
        raise
    return np.frombuffer(b"".join(texts), np.uint8), _offsets(texts, name)


def _rows(values: Any, name: str) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        raise InvalidInputError(
            f"{name} is {type(values).__name__}; give a column with one row per trajectory"
        ) from None


def _given(values: Any, name: str, count: int) -> list[Any]:
    """Return a token column as a list of rows, after checking that each row of the call has one."""
    rows = _rows(values, f"columns[{name!r}]")
    if len(rows) != count:
        raise InvalidInputError(
            f"columns[{name!r}] has {len(rows)} rows, but trajectories has {count}; give one for each, which "
            "can be None"
        )
    return rows


def _offsets(rows: Sequence[Any], name: str) -> NDArray[np.int64]:
    try:
        return np.fromiter(accumulate(map(len, rows), initial=0), np.int64, len(rows) + 1)
    except TypeError:
        place = first_wrong(rows, lambda row: np.iterable(row) and hasattr(row, "__len__")) or 0
        raise InvalidInputError(
            f"{name}[{place}] is {shown(rows[place])}; give a list of values for each row"
        ) from None


def lists(values: Any, name: str, code: str) -> Any:
    """Return a column of lists for the core: an Arrow array unchanged, or flat values and offsets."""
    dtype = _TYPES[code]
    if arrays.is_arrow(values):
        return values
    if isinstance(values, tuple) and len(values) == 2 and all(isinstance(part, np.ndarray) for part in values):
        offsets = arrays.integers(values[1], f"offsets of {name}")
        return _narrow(values[0], name, dtype, offsets), offsets
    if isinstance(values, np.ndarray) and values.ndim == 2:
        rows, width = values.shape
        offsets = np.arange(rows + 1, dtype=np.int64) * width
        return _narrow(values.reshape(-1), name, dtype, offsets), offsets
    rows = [() if row is None else row for row in _rows(values, name)]
    offsets = _offsets(rows, name)
    nested = first_wrong(rows, lambda row: getattr(row, "ndim", 1) == 1)
    if nested is not None:
        raise InvalidInputError(
            f"{name}[{nested}] has shape {tuple(rows[nested].shape)}; give a one-dimensional list of values for each "
            "row"
        )
    if rows and all(isinstance(row, np.ndarray) for row in rows):
        return _narrow(np.concatenate(rows), name, dtype, offsets), offsets
    lists = [row if isinstance(row, list) else list(row) for row in rows]
    return _core.columns.flat_lists(lists, name, dtype.__name__), offsets


def _narrow(values: NDArray[Any], name: str, dtype: Any, offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Return flat values in the dtype and memory layout of the core; `offsets` of their rows are for messages."""
    try:
        return np.require(_converted(values, name, dtype), requirements=("C", "A"))
    except InvalidInputError:
        rows = pairwise(offsets.tolist()) if values.ndim == 1 and values.dtype.kind in "iufO" else ()
        for row, (begin, end) in enumerate(rows):
            part = values[begin:end]
            if part.dtype.kind != "f" or not all(map(float.is_integer, part.tolist())):
                _converted(part, f"{name}[{row}]", dtype)  # names the row, and the place in it
        raise


def _converted(values: NDArray[Any], name: str, dtype: Any) -> NDArray[Any]:
    if dtype is np.float32:
        if values.dtype == np.object_:
            with suppress(TypeError, ValueError, OverflowError):
                values = values.astype(np.float64)  # None is NaN, as in lists
        with np.errstate(over="ignore"):
            return arrays.numbers(values, name).astype(np.float32, copy=False)
    if values.dtype == np.bool_:
        return values.astype(dtype)
    if values.dtype == dtype and values.ndim == 1:
        return values
    wide = arrays.integers(values, name)
    narrow = wide.astype(dtype)
    if not np.array_equal(narrow, wide):
        place = int((narrow != wide).argmax())
        raise InvalidInputError(f"{name}[{place}] is {wide[place]}; give numbers that fit {np.dtype(dtype)}")
    return narrow
