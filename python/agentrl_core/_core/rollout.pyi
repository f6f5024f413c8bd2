# What planners of rollouts decide by.

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["entropy_branches", "likeness", "segment_entropy"]

_F32: TypeAlias = NDArray[np.float32]
_F64: TypeAlias = NDArray[np.float64]
_I32: TypeAlias = NDArray[np.int32]
_I64: TypeAlias = NDArray[np.int64]
_U32: TypeAlias = NDArray[np.uint32]

def entropy_branches(
    groups: _U32,
    entropy: _F64,
    initial_entropy: _F64,
    uniform: _F64,
    existing: _U32,
    *,
    budget: int,
    beam: int,
    probability: float,
    entropy_weight: float,
) -> _U32: ...
def segment_entropy(entropies: _F32, offsets: _I64, limit: int, vocabulary: int, reduce: str = ...) -> _F64: ...
def likeness(first: _I32, second: _I32) -> tuple[int, int, int]: ...
