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
"""Number of new objects after which Python collects cycles."""

_WORTH_TOKENS = 1 << 17
"""Smallest batch in stored tokens worth trimming for."""


def trim_heap(tokens: int) -> None:
    """Return the memory of finished rollouts to the system, for the training step.

    Rollouts run in a thread, and glibc keeps freed memory of that thread for itself, about as much as the batch. Other
    C libraries need no trimming.
    """
    trim = _trim()
    if tokens >= _WORTH_TOKENS and trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim` of glibc."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library or system
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim


class _RelaxedGc:
    """Settings of Python's garbage collector while programs run.

    Turns create objects that live until their group ends. By default Python scans them after each 700, and all objects
    of the process when they have grown by a fourth, which with PyTorch takes longer than a thousand turns. Objects
    without cycles are freed without it, when their last reference goes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._before = self._set = gc.get_threshold()

    def begin(self) -> None:
        """Count one more running program."""
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._before = gc.get_threshold()
                first, *others = self._before
                if first:  # otherwise it never collects
                    gc.set_threshold(max(first, _NEW_OBJECTS), *others)
                self._set = gc.get_threshold()

    def end(self) -> None:
        """Count an ended program; after the last one restore the settings, unless they were changed meanwhile."""
        with self._lock:
            self._running -= 1
            if not self._running and gc.get_threshold() == self._set:
                gc.set_threshold(*self._before)

    def forget(self) -> None:
        """Reset the count in a forked child, whose parent may have held the lock."""
        self._lock = threading.Lock()
        if self._running:
            self._running = 1
            self.end()


_relaxed_gc = _RelaxedGc()
os.register_at_fork(after_in_child=_relaxed_gc.forget)


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Let Python collect garbage rarely in this block, in all threads."""
    _relaxed_gc.begin()
    try:
        yield
    finally:
        _relaxed_gc.end()
