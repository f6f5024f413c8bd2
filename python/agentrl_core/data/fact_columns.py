"""Declare columns for values that an environment reports in addition to its reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

Declared: TypeAlias = Mapping[str, Mapping[str, str]]
"""Kind of each name, for level `step` and level `trajectory`: `number` or `key`."""


def fact_column(values: Any, name: str) -> Any:
    """Return one fact of many rows for the core: numbers as float32 (NaN: missing), or the list of keys.

    Raises:
        InvalidInputError: it is not a column of numbers, texts or bytes.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return _narrow(values, name)
    try:
        rows = values.to_list() if hasattr(values, "to_list") else list(values)
    except TypeError:
        raise InvalidInputError(
            f"{name} is {type(values).__name__}; give a column with one row per trajectory"
        ) from None
    if any(isinstance(row, (str, bytes)) for row in rows):
        return rows
    return _narrow([np.nan if row is None else row for row in rows], name)


def _narrow(values: Any, name: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what is too large is infinite then, and refused
        return columns.numbers(values, name).astype(np.float32)
