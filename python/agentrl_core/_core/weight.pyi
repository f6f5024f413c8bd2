# Denominators, selections and importance ratios.

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "above_quantile",
    "conflict_tokens",
    "importance",
    "importance_diagnostics",
    "max_variance",
    "quota",
    "shares",
    "top",
    "trust_region",
    "weights_of_rows",
]

_Float = TypeVar("_Float", np.float32, np.float64)
_Bool: TypeAlias = NDArray[np.bool_]
_F64: TypeAlias = NDArray[np.float64]
_I32: TypeAlias = NDArray[np.int32]
_I64: TypeAlias = NDArray[np.int64]
_U32: TypeAlias = NDArray[np.uint32]

def shares(step_keys: _U32, draws: _U32, valid: _Bool, shared: str) -> _F64: ...
def weights_of_rows(
    lengths: _I64, units: Sequence[_U32 | None], constant: float | None, valid: _Bool | None
) -> _F64: ...
def top(
    scores: NDArray[_Float],
    groups: _U32 | None,
    *,
    count: int | None,
    fraction: float | None,
    rounding: str,
    at_least: int,
    largest: bool,
    ties: str,
    valid: _Bool | None = None,
) -> _Bool: ...
def above_quantile(
    scores: NDArray[_Float], groups: _U32, *, q: float, interpolation: str, strict: bool, valid: _Bool | None = None
) -> _Bool: ...
def max_variance(
    scores: _F64,
    groups: _U32,
    *,
    count: int | None,
    fraction: float | None,
    rounding: str,
    at_least: int,
    valid: _Bool | None = None,
) -> _Bool: ...
def quota(
    penalties: _F64,
    success: _Bool,
    groups: _U32,
    ids: _I64,
    *,
    target: int,
    at_least: int,
    seed: int | None,
    valid: _Bool | None = None,
) -> _Bool: ...
def conflict_tokens(tokens: _I32, offsets: _I64, groups: _U32, advantages: _F64) -> tuple[_Bool, _Bool]: ...
def importance(
    log_ratios: NDArray[_Float],
    offsets: _I64,
    *,
    level: str,
    at_least: float | None,
    at_most: float | None,
    kind: str,
    steps: _I64 | None = None,
    mask: _Bool | None = None,
) -> NDArray[_Float]: ...
def trust_region(
    log_ratios: NDArray[_Float],
    offsets: _I64,
    *,
    kind: str,
    aggregate: str,
    at_least: float | None,
    at_most: float,
    mask: _Bool | None = None,
) -> _Bool: ...
def importance_diagnostics(
    log_ratios: NDArray[_Float], offsets: _I64, *, mask: _Bool | None = None
) -> dict[str, Any]: ...
