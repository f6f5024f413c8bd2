"""Programs such as browsers and simulators, each of which serves one episode after the other."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Program = TypeVar("Program")


class ProgramPool(Generic[Program]):
    """Programs that are slow to start. A running episode has one alone, and later episodes reuse it.

    All of them end with `close`, with the pool, and with this process. A copy of a pool begins without programs, so
    what it is given has to be picklable.

    Args:
        start: starts a program.
        end: ends a program, running or not.
        runs: whether a program can serve another episode.

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
        """Return a program for an episode, and whether it served another one before."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        program = self._start()
        with self._lock:
            self._all.append(program)
        return program, False

    def give_back(self, program: Program) -> None:
        """Keep the program of an episode that is over for the next one; one that no longer runs is ended."""
        with self._lock:
            if program not in self._all:  # the pool was closed
                return
            if self._runs(program):
                self._idle.append(program)
                return
            self._all.remove(program)
        self._end(program)

    def close(self) -> None:
        """End all programs, those of running episodes too; a second time does nothing."""
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
