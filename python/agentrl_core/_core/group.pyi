# Statistics of groups and what is made of them.

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "arg_extreme",
    "extents",
    "finish",
    "log_mean_exp",
    "map",
    "moments",
    "normalise",
    "quantile",
    "statistics",
    "sums",
]

_Float = TypeVar("_Float", np.float32, np.float64)
_Bool: TypeAlias = NDArray[np.bool_]
_F64: TypeAlias = NDArray[np.float64]
_I64: TypeAlias = NDArray[np.int64]
_U32: TypeAlias = NDArray[np.uint32]

_Statistics: TypeAlias = tuple[
    NDArray[np.uint64],
    _F64,
    _F64,
    _F64,
    _F64,
    _F64,
]

def normalise(
    values: NDArray[_Float],
    ids: NDArray[Any],
    center: str,
    scale: str,
    median: str,
    ddof: int,
    eps: float,
    variance_eps: float,
    scale_at_least: float,
    scale_above: float,
    votes_at_least: int | None,
    singleton: str,
    at_most: float | None,
    weights: _F64 | None,
    units: _U32 | None,
    baseline: _F64 | None,
    divisor: _F64 | None,
    scale_groups: _U32 | None,
    valid: _Bool | None,
    out: NDArray[_Float] | None,
) -> NDArray[_Float]: ...
def statistics(
    values: NDArray[_Float],
    groups: _U32,
    *,
    ddof: int,
    weights: _F64 | None = None,
    units: _U32 | None = None,
    valid: _Bool | None = None,
) -> _Statistics: ...
def quantile(
    values: NDArray[_Float], groups: _U32, q: float, *, interpolation: str = ..., valid: _Bool | None = None
) -> _F64: ...
def log_mean_exp(values: NDArray[_Float], groups: _U32, temperature: float, *, valid: _Bool | None = None) -> _F64: ...
def arg_extreme(values: NDArray[_Float], groups: _U32, largest: bool, *, valid: _Bool | None = None) -> _I64: ...
def map(  # noqa: A001 - called as group.map
    values: NDArray[_Float],
    groups: _U32,
    how: str,
    *,
    temperature: float = 1.0,
    eps: float = 0.0,
    constant: float = 0.0,
    valid: _Bool | None = None,
) -> NDArray[_Float]: ...
def sums(values: NDArray[_Float], groups: _U32, count: int) -> _F64: ...
def extents(
    values: NDArray[_Float], groups: _U32, count: int, *, weights: _F64 | None = None, valid: _Bool | None = None
) -> tuple[NDArray[np.uint64], _F64, _F64, _F64]: ...
def moments(
    values: NDArray[_Float],
    groups: _U32,
    counts: NDArray[np.uint64],
    least: _F64,
    most: _F64,
    heaviest: _F64,
    *,
    weights: _F64 | None = None,
    valid: _Bool | None = None,
) -> _I64: ...
def finish(
    counts: NDArray[np.uint64], least: _F64, most: _F64, heaviest: _F64, moments: _I64, ddof: int
) -> _Statistics: ...
