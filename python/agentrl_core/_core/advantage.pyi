# Advantages that one call makes.

from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["gigpo"]

_Float = TypeVar("_Float", np.float32, np.float64)
_Bool: TypeAlias = NDArray[np.bool_]
_U32: TypeAlias = NDArray[np.uint32]

def gigpo(
    episode_scores: NDArray[_Float],
    step_returns: NDArray[_Float],
    groups: _U32,
    trajectories: _U32,
    anchors: _U32,
    *,
    step_weight: float = 1.0,
    scale: str = "none",
    voter: str = "step",
    ddof: int,
    eps: float = 1e-6,
    valid: _Bool | None = None,
) -> NDArray[_Float]: ...
