# Columns that Python or Arrow holds, as flat values.

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["arrow_lists", "arrow_numbers", "flat_lists"]

def arrow_lists(values: object, name: str) -> tuple[NDArray[Any], NDArray[np.int64]] | None: ...
def arrow_numbers(values: object, name: str) -> NDArray[Any]: ...
def flat_lists(rows: list[list[Any]], name: str, dtype: str) -> NDArray[Any]: ...
