"""An iteration that is made in a thread of its own, while the trainer steps on those before it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from agentrl_core.collect.progress import Progress

Value = TypeVar("Value")

_WATCH_SECONDS = 0.1
_CLEAN_UP_SECONDS = 10.0


class _StoppedError(Exception):
    """It is not wanted any more."""


class Underway(Generic[Value]):
    """What is made in a thread of its own, from `start` until `wait` gives it or `stop` gives it up.

    Args:
        make: makes it of this, which it tells how it goes (`look`), and whose turn it waits for (`come`).
        name: of the thread.
        before: who comes first; None: nobody.
    """

    def __init__(self, make: Callable[[Underway[Value]], Value], name: str, before: Underway[Value] | None) -> None:
        self._make = make
        self._before = before
        self._came = threading.Event()
        self._over = threading.Event()
        self._unwanted = threading.Event()
        self._made: list[Value] = []
        self._error: BaseException | None = None
        self._progress: Progress | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopped(self) -> bool:
        """Whether it was given up: it will give nothing."""
        return self._unwanted.is_set()

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._thread.ident is None and not self.stopped:
            self._thread.start()

    def stop(self) -> None:
        """Give it up, without waiting for it."""
        self._unwanted.set()
        self._came.set()

    def join(self) -> None:
        """Wait until it has cleaned up, a few seconds at most."""
        if self._thread.ident is not None:
            self._over.wait(_CLEAN_UP_SECONDS)

    def wait(self, watch: Callable[[Progress], object] | None) -> Value:
        """What was made, as soon as it is there; meanwhile `watch` is called ten times a second, and in the end.

        Raises:
            BaseException: what making it raised.
        """
        while not self._over.wait(_WATCH_SECONDS):
            self._watch(watch)
        self._watch(watch)
        if self._error is not None:
            raise self._error
        return self._made[0]

    def _watch(self, watch: Callable[[Progress], object] | None) -> None:
        if watch is not None and self._progress is not None:
            watch(self._progress)

    def look(self, progress: Progress) -> None:
        """See how it goes (for who makes it), and raise where it has to stop."""
        self._progress = progress
        if self.stopped:
            raise _StoppedError

    def come(self) -> None:
        """Wait until the one before has come, or is over."""
        if self._before is not None:
            self._before._came.wait()  # noqa: SLF001 -- one of its own
            self._before = None

    def follow(self) -> None:
        """Wait until the one before is made, and be given up where it is not."""
        if self._before is not None:
            before, self._before = self._before, None
            before._came.wait()  # noqa: SLF001 -- one of its own
            if before.stopped or before._error is not None:  # noqa: SLF001
                self.stop()
        if self.stopped:
            raise _StoppedError

    def came(self) -> None:
        """Let the one behind come."""
        self._came.set()

    def _run(self) -> None:
        try:
            self._made.append(self._make(self))
        except BaseException as error:  # noqa: BLE001 -- whoever waits gets it
            self._error = error
        finally:
            self._came.set()
            self._over.set()
