# Advantages that one call makes.

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["gigpo"]

_Bool: TypeAlias = NDArray[np.bool_]
_F64: TypeAlias = NDArray[np.float64]
_I64: TypeAlias = NDArray[np.int64]

def gigpo(
    episode_scores: _F64,
    group_ids: NDArray[Any],
    trajectory_ids: NDArray[Any],
    steps: _I64,
    state_keys: NDArray[Any],
    step_rewards: _F64,
    gamma: float,
    step_weight: float,
    scale: str,
    voter: str,
    ddof: int,
    eps: float,
    valid: _Bool | None,
) -> _F64: ...
