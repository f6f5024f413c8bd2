"""Tune memory of the process: rare garbage collection while programs run, and free memory returned to the system."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

_NEW_OBJECTS = 20_000
"""So many more objects than before are there when Python looks for cycles among them."""

_WORTH_TOKENS = 1 << 17
"""Behind a batch of fewer stored tokens there is too little to look for."""


def trim_heap(tokens: int) -> None:
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


class _RelaxedGc:
    """What Python is told as long as anything runs.

    Turns make objects that live until their group ends. By default Python looks at them after each 700, and whenever
    they have become a fourth of all objects, at all that the process has, which in one with PyTorch takes longer than
    a thousand turns. Objects without cycles do not wait for it: they leave memory when nobody holds them any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._before = self._told = gc.get_threshold()

    def begin(self) -> None:
        """Something more runs."""
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._before = gc.get_threshold()
                first, *others = self._before
                if first:  # else it never looks
                    gc.set_threshold(max(first, _NEW_OBJECTS), *others)
                self._told = gc.get_threshold()

    def end(self) -> None:
        """Something has ended; behind the last it is as it was, unless somebody said something else meanwhile."""
        with self._lock:
            self._running -= 1
            if not self._running and gc.get_threshold() == self._told:
                gc.set_threshold(*self._before)

    def forget(self) -> None:
        """Nothing runs in a child that was just forked, and its parent may have held the lock."""
        self._lock = threading.Lock()
        if self._running:
            self._running = 1
            self.end()


_relaxed_gc = _RelaxedGc()
os.register_at_fork(after_in_child=_relaxed_gc.forget)


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Have Python collect garbage seldom meanwhile, in all threads."""
    _relaxed_gc.begin()
    try:
        yield
    finally:
        _relaxed_gc.end()
