"""Gives memory that is free back to the system, which the C library would keep."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

_WORTH_TOKENS = 1 << 17
"""Behind a batch of fewer stored tokens there is too little to look for."""


def give_back(tokens: int) -> None:
    """Have the system use the memory that the rollouts of so many stored tokens took, while a trainer steps.

    Rollouts run in a thread, whose memory the C library keeps for that thread alone, also when all of it is free: as
    much again as the batch. Where the library is another one than glibc, nothing is done.
    """
    trim = _trim()
    if tokens >= _WORTH_TOKENS and trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim` of glibc."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # of another C library, or another system
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
