# Dense ids of keys.

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["dense", "history", "label", "named", "pair", "similar"]

_Bool: TypeAlias = NDArray[np.bool_]
_U32: TypeAlias = NDArray[np.uint32]

def dense(values: object, name: str = "values") -> tuple[_U32, int]: ...
def label(values: object, name: str = "values") -> _U32: ...
def named(values: object, name: str) -> tuple[_U32, list[str]]: ...
def pair(first: _U32, second: _U32) -> tuple[_U32, int]: ...
def history(states: object, trajectories: object, groups: object, levels: int) -> list[tuple[_U32, _Bool]]: ...
def similar(
    texts: Sequence[str], groups: _U32, threshold: float, sketch: tuple[int, int, int] | None = None
) -> _U32: ...
