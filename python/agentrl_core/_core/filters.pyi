# Which rows and groups stay.

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["group_band", "round_rows", "top_groups"]

_Bool: TypeAlias = NDArray[np.bool_]
_F64: TypeAlias = NDArray[np.float64]
_U32: TypeAlias = NDArray[np.uint32]

def group_band(
    scores: _F64,
    groups: _U32,
    *,
    std_above: float | None,
    ddof: int,
    at_least: float | None,
    at_most: float | None,
    members_at_least: int,
    accept_single: bool,
    valid: _Bool | None = None,
) -> _Bool: ...
def top_groups(scores: _F64, groups: _U32, *, fraction: float, ddof: int, valid: _Bool | None = None) -> _Bool: ...
def round_rows(keep: _Bool, scores: _F64, *, multiple: int, up: bool, valid: _Bool | None = None) -> _Bool: ...
