# Packs without a batch.

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["balanced", "continuations", "pair_streams", "tree_layout"]

_Bool: TypeAlias = NDArray[np.bool_]
_F32: TypeAlias = NDArray[np.float32]
_I32: TypeAlias = NDArray[np.int32]
_I64: TypeAlias = NDArray[np.int64]

def pair_streams(
    summed: Sequence[tuple[NDArray[np.floating[Any]], _F32]],
    first: Sequence[tuple[_F32, _F32]],
    pair_offsets: _I64,
    pair_tokens: _I64,
) -> None: ...
def balanced(costs: _I64, bins: int) -> list[_I64]: ...
def continuations(
    text: _I32, begins: _I64, ends: _I64, tails: _I32, tail_offsets: _I64, tail_of: _I64, max_tokens: int
) -> list[_I64]: ...
def tree_layout(
    tokens: _I32,
    offsets: _I64,
    trained: _Bool | None,
    same: Sequence[_F32],
    take: Callable[[str, int, np.dtype[Any]], NDArray[Any]] | None = None,
) -> tuple[_I64, _I64, _I32, _I32, _I64, _I64, _I64, _I64, _I64]: ...
