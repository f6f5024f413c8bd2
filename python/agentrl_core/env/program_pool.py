"""A pool of programs, such as browsers and simulators, that successive episodes reuse."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Program = TypeVar("Program")


class ProgramPool(Generic[Program]):
    """Pool of programs that are slow to start. A running episode has its own program, which later episodes reuse.

    All programs end with `close`, with the pool, and with this process. An unpickled copy of a pool has no programs;
    the arguments must be picklable.

    Args:
        start: starts a program.
        end: ends a program, running or not.
        runs: returns whether a program can be used for another episode.

    Example:
        >>> from agentrl_core.env.program_pool import ProgramPool
        >>> pool = ProgramPool(start=list, end=list.clear, runs=lambda program: program != ["broken"])
        >>> first, reused = pool.take()
        >>> reused
        False
        >>> pool.give_back(first)
        >>> pool.take() == (first, True)
        True
        >>> pool.close()
    """

    def __init__(
        self, start: Callable[[], Program], end: Callable[[Program], object], runs: Callable[[Program], bool]
    ) -> None:
        self._start, self._end, self._runs = start, end, runs
        self._begin()

    def take(self) -> tuple[Program, bool]:
        """Return a program for an episode, and whether an earlier episode used it."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        program = self._start()
        with self._lock:
            self._all.append(program)
        return program, False

    def give_back(self, program: Program) -> None:
        """Keep the program of an ended episode for the next one, or end it if it no longer runs."""
        with self._lock:
            if program not in self._all:  # the pool was closed
                return
            if self._runs(program):
                self._idle.append(program)
                return
            self._all.remove(program)
        self._end(program)

    def close(self) -> None:
        """End all programs, including those of running episodes; a second call does nothing."""
        with self._lock:
            self._idle.clear()
            programs, self._all[:] = list(self._all), []
        _end_all(programs, self._end)

    def __len__(self) -> int:
        """Return the number of programs, idle or not."""
        return len(self._all)

    def __getstate__(self) -> dict[str, Any]:
        return {"_start": self._start, "_end": self._end, "_runs": self._runs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Program] = []
        self._all: list[Program] = []
        weakref.finalize(self, _end_all, self._all, self._end)


def _end_all(programs: list[Program], end: Callable[[Program], object]) -> None:
    while programs:
        end(programs.pop())
