# Counter-based randomness.

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["structural_seed", "uniform"]

_F64: TypeAlias = NDArray[np.float64]

def structural_seed(*parts: int) -> int: ...
def uniform(seeds: NDArray[np.uint64], counter: int) -> _F64: ...
