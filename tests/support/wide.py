"""Split a wide matrix between `make test` and `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def spread(values: Iterable[Any], every: int = 3) -> list[Any]:
    """Return all values as parameters; those between each `every`-th run in `make test-full` only."""
    result = list(values)
    for place, value in enumerate(result):
        if place % every:
            result[place] = pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.full)
    return result
