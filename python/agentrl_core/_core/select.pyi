# Which tasks, and how many rollouts of each.

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "attended",
    "best_arms",
    "beta_draws",
    "drawn",
    "greedy",
    "independent",
    "log_total",
    "permuted",
    "places",
    "shares",
    "successive",
    "top",
]

_Bool: TypeAlias = NDArray[np.bool_]
_F64: TypeAlias = NDArray[np.float64]
_I64: TypeAlias = NDArray[np.int64]
_U32: TypeAlias = NDArray[np.uint32]

def places(known: _I64, wanted: _I64) -> _I64: ...
def permuted(total: int, count: int, key: int, taken: _I64) -> _I64: ...
def drawn(total: int, count: int, key: int, taken: _I64) -> _I64: ...
def top(scores: _F64, rows: _I64, count: int, key: int) -> _I64: ...
def successive(logits: _F64, rows: _I64, count: int, key: int) -> _I64: ...
def independent(weights: _F64, count: int, key: int) -> _I64: ...
def beta_draws(alpha: _F64, beta: _F64, rows: _I64, key: int) -> _F64: ...
def attended(queries: _F64, references: _F64, labels: _F64, width: int, scale: float) -> _F64: ...
def greedy(
    probabilities: _F64,
    weights: _F64,
    *,
    value: str,
    total: int,
    low: int,
    high: int,
    gain_above: float,
    rest: _Bool | None = None,
) -> _U32: ...
def shares(weights: _F64, *, total: int, low: int, high: int) -> _U32: ...
def best_arms(values: _F64, sizes: _U32, arms: _U32, *, total: int) -> _U32: ...
def log_total(logits: _F64) -> float: ...
