"""Convert columns to NumPy: NumPy and Arrow arrays, Polars Series, torch CPU tensors and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core._util.wrong_values import first_wrong, is_number, shown
from agentrl_core.exceptions import InvalidInputError

_STATE_BYTES = 16
_LARGEST = np.iinfo(np.int64).max
_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
_IDS = "qI"
"""NumPy codes of id dtypes that the core accepts unchanged: int64 and uint32."""

is_plain = _core.columns.is_plain


def numbers(
    values: object,
    name: str,
    *,
    length: int | None = None,
    dimensions: tuple[int, ...] = (1,),
    first: str = "the first column",
) -> NDArray[Any]:
    """Convert a column of numbers to `float32` or `float64` (other dtypes become float64; nulls become NaN).

    Args:
        values: a column of any of the kinds above.
        name: name of the argument, for messages.
        length: required number of values, if known.
        dimensions: allowed numbers of dimensions.
        first: the argument with this number of values, for messages.

    Raises:
        InvalidInputError: it has another number of dimensions or length, or does not hold numbers.
    """
    if is_plain(values, "df", length, dimensions):
        return values
    array = column(values, name, dimensions=dimensions)
    if array.dtype not in _FLOATS:
        if array.dtype.kind not in "fiub":
            text = array.dtype.kind in "US"
            advice = "turn the texts into numbers first" if text else "give ints or floats, with NaN in place of None"
            raise InvalidInputError(f"{_entry(array, name, is_number)}; {advice}")
        array = array.astype(np.float64)
    return _flat(_checked(array, name, length, first))


def optional_numbers(
    values: object | None, name: str, *, length: int, first: str = "the first column"
) -> NDArray[np.float64] | None:
    """Convert a column of numbers to `float64`; None stays None.

    Raises:
        InvalidInputError: as for `numbers`.
    """
    return None if values is None else doubles(values, name, length=length, first=first)


def doubles(
    values: object, name: str, *, length: int | None = None, first: str = "the first column"
) -> NDArray[np.float64]:
    """Convert a column of numbers to `float64`, the dtype of all computations; see `numbers`."""
    if is_plain(values, "d", length):
        return values
    if is_plain(values, "?qf", length):
        return values.astype(np.float64)
    array = numbers(values, name, length=length, first=first)
    return array if is_plain(array, "d") else array.astype(np.float64)


def like(results: NDArray[np.float64], column: NDArray[Any]) -> NDArray[Any]:
    """Convert a result to the dtype of the input column.

    Raises:
        InvalidInputError: a number is too large for the type.
    """
    if results.dtype == column.dtype:
        return representable(results)
    with np.errstate(over="ignore"):
        return representable(results.astype(column.dtype, copy=False))


def representable(results: NDArray[Any]) -> NDArray[Any]:
    """Return a result, or raise if a number is too large for its dtype.

    Raises:
        InvalidInputError: a number is too large.
    """
    if not _core.columns.is_finite(results):
        place = tuple(int(index) for index in np.argwhere(~np.isfinite(results))[0])
        raise InvalidInputError(f"the result at {place} is too large for {results.dtype}; scale the inputs")
    return results


def integers(
    values: object, name: str, *, length: int | None = None, first: str = "the first column"
) -> NDArray[np.int64]:
    """Convert a column of integers to `int64`.

    Raises:
        InvalidInputError: it is not one-dimensional, does not hold integers, or has another length.
    """
    if is_plain(values, "q", length):
        return values
    array = column(values, name)
    if array.dtype.kind not in "iu":
        raise InvalidInputError(f"{_entry(array, name, _is_whole_number)}; give whole numbers without missing values")
    if array.dtype == np.uint64 and len(array) and array.max() > _LARGEST:
        raise InvalidInputError(
            f"{_item(array, name, int(array.argmax()))} is {array.max()}, which does not fit int64; give numbers of "
            f"at most {_LARGEST}"
        )
    return _flat(_checked(array.astype(np.int64, copy=False), name, length, first))


def mask(
    values: object | None, name: str, *, length: int | None = None, first: str = "the first column"
) -> NDArray[np.bool_] | None:
    """Convert a column of booleans; None stays None.

    Raises:
        InvalidInputError: it is not one-dimensional, does not hold booleans, or has another length.
    """
    if values is None:
        return None
    if is_plain(values, "?", length):
        return values
    array = column(values, name)
    if array.dtype != np.bool_ and len(array):
        odd = _entry(array, name, lambda value: isinstance(value, (bool, np.bool_)), kinds="O")
        raise InvalidInputError(f"{odd}; give booleans, True for rows that count")
    return _flat(_checked(array.astype(np.bool_, copy=False), name, length, first))


def flags(
    values: object, name: str, *, length: int | None = None, first: str = "the first column"
) -> NDArray[np.bool_]:
    """Convert a required column of booleans; see `mask`."""
    booleans = mask(values, name, length=length, first=first)
    if booleans is None:
        raise InvalidInputError(f"{name} is None; give booleans")
    return booleans


def keys(
    values: object, name: str, *, length: int | None = None, first: str = "the first column"
) -> NDArray[np.uint32]:
    """Convert a column of ids to dense `uint32` ids, 0 to k-1 in order of first appearance.

    Args:
        values: whole numbers, strings, bytes, or `uint8[n, 16]` hashes.
        name: name of the argument, for messages.
        length: required number of values, if known.
        first: the argument with this number of values, for messages.

    Raises:
        InvalidInputError: the ids have another type or length.
    """
    if is_plain(values, _IDS):
        dense, _ = _core.keys.dense(values)
    elif isinstance(values, (list, tuple)):
        dense, _ = _core.keys.dense(list(values), name)
    elif not isinstance(values, np.ndarray) and is_arrow(values):
        try:
            dense, _ = _core.keys.dense(values, name)  # strings and binary, without a copy
        except InvalidInputError:
            if not _holds_integers(values, name):
                raise
            dense = _dense(values, name)
    else:
        dense = _dense(values, name)
    return _checked(dense, name, length, first)


def named(
    values: object, name: str, *, length: int, first: str = "the first column"
) -> tuple[NDArray[np.uint32], list[str]]:
    """Convert a column of ids to dense ids, with the text of each, which is the same in every batch.

    Raises:
        InvalidInputError: as for `keys`.
    """
    if isinstance(values, tuple):
        values = list(values)
    elif not (isinstance(values, list) or is_plain(values, "q")):
        texts = is_arrow(values) and not _holds_integers(values, name)
        array = np.asarray(values) if texts else column(values, name)
        if array.dtype.kind in "iu" and array.dtype != np.uint64:
            values = _flat(array.astype(np.int64, copy=False))
        else:
            keys(values, name)  # raises an error with the reason
            values = array.tolist()
    dense, names = _core.keys.named(values, name)
    return _checked(dense, name, length, first), names


def ids(values: object, name: str, *, length: int | None = None, first: str = "the first column") -> NDArray[Any]:
    """Convert a column of ids for functions that relabel them: integers unchanged, others dense.

    Raises:
        InvalidInputError: as for `keys`.
    """
    if is_plain(values, _IDS, length):
        return values
    if isinstance(values, np.ndarray) or not (isinstance(values, (list, tuple)) or is_arrow(values)):
        values = column(values, name, dimensions=(1, 2))
        if values.ndim == 1 and values.dtype.kind in "iu":
            return _checked(_flat(values), name, length, first)
    return keys(values, name, length=length, first=first)


def labels(
    values: object, name: str, *, length: int | None = None, first: str = "the first column"
) -> NDArray[np.uint32]:
    """Convert a column of ids to `uint32` ids in any order, for functions without one result per group.

    Equal ids get equal labels below the number of rows, with possible gaps. For integers in a small range this is
    several times faster than `keys`.

    Raises:
        InvalidInputError: as for `keys`.
    """
    return _core.keys.label(ids(values, name, length=length, first=first), name)


def groups(values: object | None, name: str, *, length: int, first: str = "the first column") -> NDArray[np.uint32]:
    """Convert group ids as `keys` does; None puts all rows into one group."""
    return np.zeros(length, np.uint32) if values is None else keys(values, name, length=length, first=first)


def scored(
    scores: object, group_ids: object | None, valid: object | None
) -> tuple[NDArray[Any], NDArray[np.uint32], NDArray[np.bool_] | None]:
    """Convert the arguments of row selections: scores, group ids (as in `groups`), and the mask `valid`."""
    column = numbers(scores, "scores")
    return (
        column,
        groups(group_ids, "group_ids", length=len(column), first="scores"),
        mask(valid, "valid", length=len(column), first="scores"),
    )


def marks(values: object, name: str, *, dimensions: tuple[int, ...]) -> NDArray[np.bool_]:
    """Convert a table of booleans, or of 0 and 1.

    Raises:
        InvalidInputError: it has another number of dimensions or dtype.
    """
    if is_plain(values, "?", None, dimensions):
        return values
    table = column(values, name, dimensions=dimensions)
    if table.dtype.kind not in "biu":
        raise InvalidInputError(f"{name} has dtype {table.dtype}; give booleans, or the integers 0 and 1")
    if table.size and (table.min() < 0 or table.max() > 1):
        odd = int(((table < 0) | (table > 1)).argmax())
        raise InvalidInputError(f"{_item(table, name, odd)} is {table.flat[odd]}; give booleans, or 0 and 1")
    return table.astype(np.bool_)


def places(values: object | None, name: str, *, length: int, first: str = "the first column") -> NDArray[np.int64]:
    """Convert ids that determine each row's random numbers; None is the row number."""
    return np.arange(length, dtype=np.int64) if values is None else integers(values, name, length=length, first=first)


def _dense(values: object, name: str) -> NDArray[np.uint32]:
    array = column(values, name, dimensions=(1, 2))
    if array.ndim == 2:
        if array.dtype != np.uint8 or array.shape[1] != _STATE_BYTES:
            raise InvalidInputError(
                f"{name} has dtype {array.dtype} and shape {array.shape}; give one-dimensional ids, or rows of "
                f"{_STATE_BYTES} bytes (dtype uint8)"
            )
        halves = np.ascontiguousarray(array).view(np.int64)
        first, _ = _core.keys.dense(np.ascontiguousarray(halves[:, 0]))
        second, _ = _core.keys.dense(np.ascontiguousarray(halves[:, 1]))
        dense, _ = _core.keys.pair(first, second)
    elif array.dtype.kind in "iu":
        dense, _ = _core.keys.dense(_flat(array))
    elif array.dtype.kind in "USO":
        dense, _ = _core.keys.dense(array.tolist(), name)
    else:
        raise InvalidInputError(f"{name} has dtype {array.dtype}; give ids as whole numbers, strings or bytes")
    return dense


def column(values: object, name: str, *, dimensions: tuple[int, ...] = (1,)) -> NDArray[Any]:
    """Convert a column of NumPy, Arrow, Polars, torch or a list to a NumPy array.

    Raises:
        InvalidInputError: it cannot be converted, or has another number of dimensions.
    """
    if (
        type(values) is np.ndarray
        and values.dtype.kind in "fiub"
        and values.dtype.isnative
        and values.ndim in dimensions
    ):
        return values
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        tensor: Any = values.detach()
        # NumPy has no bfloat16; float32 holds every value.
        values = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    if type(values).__module__.startswith("polars") and type(values).__name__ == "Expr":
        raise InvalidInputError(f"{name} is a Polars expression without values; pass the column: df['x']")
    if isinstance(values, np.ma.MaskedArray):
        values = _unmasked(values, name)
    arrow = is_arrow(values)
    try:
        # Without a copy if possible; libraries convert nulls differently, so the core reads those.
        array = None if arrow and not _is_whole(values) else np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        if not arrow:
            raise InvalidInputError(
                f"{name} of type {type(values).__name__} is not a column: {error}; give a NumPy or Arrow array, a "
                f"Polars Series, a torch CPU tensor, or a list without nested lists of different lengths"
            ) from None
        array = None
    if array is None or (arrow and array.dtype == np.object_):
        array = _core.columns.arrow_numbers(values, name)
    if array.size == 0 and array.ndim == 1 and isinstance(values, (list, tuple)):
        array = array.astype(np.int64)  # an empty list has no dtype, so it fits any
    if array.dtype == np.object_:
        array = _typed(array, name)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.ndim not in dimensions:
        expected = "a one-dimensional column" if dimensions == (1,) else "a column, or a table of columns"
        found = f"has shape {array.shape}" if array.ndim or hasattr(values, "shape") else f"is {type(values).__name__}"
        raise InvalidInputError(f"{name} {found}; give {expected}")
    return array


def flat(values: object, name: str, offsets: NDArray[np.int64], dimensions: tuple[int, ...] = (1,)) -> NDArray[Any]:
    """Convert values of ragged rows, from a flat column or a column with one list per row.

    Args:
        values: a column of any of the kinds above, or an Arrow or Polars column of lists; a missing list gives NaN.
        name: name of the argument, for messages.
        offsets: start of each row.
        dimensions: numbers of dimensions that a flat column may have.

    Raises:
        InvalidInputError: it is not a column, or a list has another length than its row.
    """
    if not is_arrow(values):
        return column(values, name, dimensions=dimensions)
    lists = _core.columns.arrow_lists(values, name)
    if lists is None:
        return column(values, name)
    elements, lengths = lists
    expected = np.diff(offsets)
    if len(lengths) != len(expected):
        raise InvalidInputError(f"{name} has {len(lengths)} lists; give one for each of {len(expected)} rows")
    known = lengths >= 0
    wrong = np.flatnonzero(known & (lengths != expected))
    if len(wrong):
        raise InvalidInputError(
            f"{name} has a list of {lengths[wrong[0]]} values in row {wrong[0]}, which has {expected[wrong[0]]} "
            "tokens; give one value for each token"
        )
    if known.all():
        return elements
    filled = np.full(offsets[-1], np.nan, elements.dtype if elements.dtype.kind == "f" else np.float64)
    filled[np.repeat(known, expected)] = elements
    return filled


def output(out: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Check an output array of the caller.

    Raises:
        InvalidInputError: it is not a NumPy array, or has another shape or dtype.
    """
    if not isinstance(out, np.ndarray):
        raise InvalidInputError(
            f"out is {type(out).__name__}; give a NumPy array of shape {shape} and dtype {dtype}, or None"
        )
    if out.shape != shape or out.dtype != dtype:
        raise InvalidInputError(f"out has shape {out.shape} and dtype {out.dtype}; give {shape} of {dtype}")
    return out


def by_name(values: object, name: str) -> Mapping[str, Any]:
    """Check a dict of columns by name; None gives an empty dict.

    Raises:
        InvalidInputError: it is not a dict of columns.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"{name} is {type(values).__name__}; give a dict of columns by name")
    return values


def as_bytes(value: object, name: str) -> bytes:
    """Return bytes unchanged, or the UTF-8 bytes of a text.

    Raises:
        InvalidInputError: it is neither, or a text with a lone surrogate.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, str):
        raise InvalidInputError(f"{name} is {value!r:.80}; give text or bytes")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"{name} is {value!r:.80}, which is not Unicode (a lone surrogate); give "
            f'{name}.encode("utf-8", "replace"), or bytes'
        ) from None


def _typed(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Convert an array of objects to an array of numbers, if all are numbers."""
    if not array.size or not isinstance(array.flat[0], (Real, np.number, np.bool_)):
        return array
    try:
        typed = np.array(array.tolist())
    except ValueError:
        return array
    odd = first_wrong(array.flat, is_number) if typed.dtype == np.object_ else None
    if odd is not None and isinstance(array.flat[odd], int):
        raise InvalidInputError(
            f"{_item(array, name, odd)} is {shown(array.flat[odd])}, beyond 64 bits; give smaller numbers, or floats"
        )
    return typed if typed.dtype.kind in "fiub" and typed.shape == array.shape else array


def _entry(array: NDArray[Any], name: str, is_good: Callable[[Any], bool], *, kinds: str = "Of") -> str:
    """Return the name and value of the first entry that is not good, or the dtype of the column, for messages."""
    odd = first_wrong(array.flat, is_good) if array.dtype.kind in kinds else None
    if odd is None:
        return f"{name} has dtype {array.dtype}"
    return f"{_item(array, name, odd)} is {shown(array.flat[odd])}"


def _item(array: NDArray[Any], name: str, place: int) -> str:
    """Return the name of an entry of a column, whose name may end with a quoted one, such as `column 'x'`."""
    index = ", ".join(map(str, np.unravel_index(place, array.shape)))
    return f"entry {index} of {name}" if name.endswith("'") else f"{name}[{index}]"


def _is_whole_number(value: object) -> bool:
    if isinstance(value, (float, np.floating)):
        return float(value).is_integer()
    return isinstance(value, (Integral, np.bool_))


def _unmasked(values: np.ma.MaskedArray[Any, Any], name: str) -> NDArray[Any]:
    """Convert a masked array to an array: masked numbers become NaN."""
    hidden = np.broadcast_to(values.mask, values.shape)
    if not hidden.any():
        return np.asarray(values)
    if values.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"{_item(hidden, name, int(hidden.argmax()))} is masked, and dtype {values.dtype} has no NaN; give a value "
            "for each row"
        )
    dtype = values.dtype if values.dtype == np.float32 else np.float64
    return np.where(hidden, np.nan, np.asarray(values)).astype(dtype)


def _holds_integers(values: object, name: str) -> bool:
    try:
        return column(values, name).dtype.kind in "iu"
    except InvalidInputError:
        return False


def _is_whole(values: Any) -> bool:
    """Return whether NumPy can read an Arrow column: it supports NumPy's protocol and has no nulls."""
    nulls = getattr(values, "null_count", 0)
    return hasattr(values, "__array__") and not (nulls() if callable(nulls) else nulls)


def is_arrow(values: object) -> bool:
    """Return whether a value is an Arrow array or stream of any library."""
    return hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__")


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """Return contiguous and aligned memory for the core."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=("C", "A"))


def _checked(array: NDArray[Any], name: str, length: int | None, first: str = "the first column") -> NDArray[Any]:
    if length is not None and len(array) != length:
        raise InvalidInputError(f"{name} has {len(array)} rows but {first} has {length}; give one per row")
    return array
