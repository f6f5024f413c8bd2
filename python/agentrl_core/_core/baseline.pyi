# Baselines.

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["decayed_beta", "ema_mean", "running_moments", "shrunk_mean"]

_Bool: TypeAlias = NDArray[np.bool_]
_F64: TypeAlias = NDArray[np.float64]
_I64: TypeAlias = NDArray[np.int64]
_U32: TypeAlias = NDArray[np.uint32]

def shrunk_mean(
    values: _F64, groups: _U32, prior: _F64, variance: float, leave_one_out: bool, valid: _Bool | None
) -> _F64: ...
def ema_mean(
    state: Any,
    names: list[str],
    values: _F64,
    groups: _U32,
    decay: float,
    initial: float,
    before: bool,
    valid: _Bool | None,
) -> tuple[_F64, dict[str, float]]: ...
def running_moments(
    state: Any, names: list[str], values: _F64, groups: _U32, ddof: int, valid: _Bool | None
) -> tuple[_F64, _F64, _I64, dict[str, list[float]]]: ...
def decayed_beta(
    state: Any,
    names: list[str],
    successes: _F64,
    groups: _U32,
    decay: float | _F64,
    initial: float,
    valid: _Bool | None,
) -> tuple[_F64, dict[str, list[float]]]: ...
