"""Compress arrays that are sent to other ranks: runs of equal or consecutive values, and integers in four bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LONG_RUN = 4
"""An array is stored as runs if they have at least this many values on average."""


@dataclass(frozen=True, eq=False)
class ShortArray:
    """A compressed one-dimensional array: runs of equal or consecutive values, or all values.

    Attributes:
        dtype: dtype of the whole array.
        values: the first value of each run, or all values.
        begins: `int32[runs]`, the start of each run; None: stored as values.
        length: length of the whole array.
        step: difference of neighbouring values in a run: 0 or 1.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.model.compressed_arrays import ShortArray
        >>> rows = np.concatenate([np.arange(100), np.arange(50)])
        >>> short = ShortArray.of(rows)
        >>> short.begins.tolist(), short.step, np.array_equal(short.whole(), rows)
        ([0, 100], 1, True)
    """

    dtype: np.dtype[Any]
    values: NDArray[Any]
    begins: NDArray[np.int32] | None = None
    length: int = 0
    step: int = 0

    @classmethod
    def of(cls, array: NDArray[Any]) -> ShortArray:
        """Compress an array, as runs if they are long enough."""
        if array.ndim == 1 and len(array) < 2**31:
            bits = array.view(f"u{array.itemsize}")  # NaN is equal to itself, and differences wrap
            changes = bits[1:] - bits[:-1]
            for step in (0, 1) if array.dtype.kind in "iu" else (0,):
                begins = np.flatnonzero(changes != step) + 1
                if _LONG_RUN * (len(begins) + 1) < len(array):
                    at = np.append(0, begins).astype(np.int32)
                    return cls(array.dtype, _narrow(array[at]), at, len(array), step)
        return cls(array.dtype, _narrow(array))

    def whole(self) -> NDArray[Any]:
        """Return the uncompressed array, in new memory."""
        values = self.values.astype(self.dtype)
        if self.begins is None:
            return values
        lengths = np.diff(self.begins, append=self.length)
        array = np.repeat(values, lengths)
        if self.step:
            array += (np.arange(self.length) - np.repeat(self.begins, lengths)).astype(self.dtype)
        return array


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Return 64-bit integers as 32-bit integers if all fit; other arrays unchanged."""
    if values.dtype != np.int64 or (values.size and not -(2**31) <= values.min() <= values.max() < 2**31):
        return np.ascontiguousarray(values)
    return values.astype(np.int32)
