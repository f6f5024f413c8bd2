# Trees as columns, and credit along them.

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["ancestor_relative", "build", "fuse", "isotonic", "peers"]

_Bool: TypeAlias = NDArray[np.bool_]
_F64: TypeAlias = NDArray[np.float64]
_I64: TypeAlias = NDArray[np.int64]
_U32: TypeAlias = NDArray[np.uint32]

def build(elements: _I64, offsets: _I64) -> tuple[_I64, _U32]: ...
def fuse(
    parents: _I64,
    nodes: _U32 | _I64,
    values: _F64,
    *,
    kind: str,
    alpha: float,
    expectile: float,
    edge_logprobs: _F64 | None = None,
    weights: _F64 | None = None,
    valid: _Bool | None = None,
) -> tuple[_F64, _F64]: ...
def ancestor_relative(
    parents: _I64,
    nodes: _U32 | _I64,
    values: _F64,
    *,
    weighting: str,
    drop_constant: bool,
    singleton: str,
    weights: _F64 | None = None,
    valid: _Bool | None = None,
) -> _F64: ...
def peers(parents: _I64, kind: str) -> _U32: ...
def isotonic(
    parents: _I64, values: _F64, *, margin: float, radius: str, weights: _F64 | None = None, valid: _Bool | None = None
) -> _F64: ...
