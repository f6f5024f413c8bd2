# Returns and advantages over time.

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["discounted", "gae", "n_step", "optimal_token_baseline", "v_trace"]

_Float = TypeVar("_Float", np.float32, np.float64)
_Bool: TypeAlias = NDArray[np.bool_]
_F64: TypeAlias = NDArray[np.float64]
_I64: TypeAlias = NDArray[np.int64]

def discounted(
    rewards: NDArray[_Float],
    offsets: _I64,
    bootstrap: NDArray[_Float],
    gamma: float,
    *,
    mask: _Bool | None = None,
    ends: _Bool | None = None,
    out: NDArray[_Float] | None = None,
) -> NDArray[_Float]: ...
def gae(
    rewards: NDArray[_Float],
    values: NDArray[_Float],
    offsets: _I64,
    bootstrap: NDArray[_Float],
    gamma: float,
    lam: float,
    *,
    whiten: float | None = None,
    mask: _Bool | None = None,
    ends: _Bool | None = None,
    out: NDArray[_Float] | None = None,
) -> NDArray[_Float]: ...
def v_trace(
    rewards: NDArray[_Float],
    values: NDArray[_Float],
    log_ratios: NDArray[_Float],
    offsets: _I64,
    bootstrap: NDArray[_Float],
    gamma: float,
    lam: float,
    rho_at_most: float,
    c_at_most: float,
    *,
    mask: _Bool | None = None,
    ends: _Bool | None = None,
    out: NDArray[_Float] | None = None,
) -> NDArray[_Float]: ...
def n_step(
    rewards: NDArray[_Float],
    values: NDArray[_Float],
    offsets: _I64,
    bootstrap: NDArray[_Float],
    gamma: float,
    steps: int,
    *,
    mask: _Bool | None = None,
    ends: _Bool | None = None,
    out: NDArray[_Float] | None = None,
) -> NDArray[_Float]: ...
def optimal_token_baseline(
    returns: _F64,
    energies: _F64,
    offsets: _I64,
    group_ids: NDArray[np.integer[Any]],
    align: str,
    eps: float,
    zero_tail: bool,
    mask: _Bool | None,
) -> _F64: ...
