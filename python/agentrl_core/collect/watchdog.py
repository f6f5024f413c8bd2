"""Warn of code that blocks the event loop."""

from __future__ import annotations

import asyncio
import selectors
import sys
import sysconfig
import threading
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

LOOK_SECONDS = 0.01
_LATE_SECONDS = 0.04
_MOST_SECONDS = 0.05
_NOBODYS = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")
"""Folders of code that users did not write."""


class CountingSelector(selectors.DefaultSelector):
    """Count the iterations of an event loop, each of which calls every ready task once."""

    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for the next events."""
        self.turns += 1
        return super().select(timeout)


class Watchdog:
    """Sample an event loop from another thread, and warn if one call of a task takes too long.

    Each place is reported once per process. Calls inside this package or libraries only are not reported.

    Args:
        loop: the loop of the tasks.
        selector: the selector of the loop.
    """

    told: set[tuple[str, int]] = set()  # noqa: RUF012 -- of the process

    def __init__(self, loop: asyncio.AbstractEventLoop, selector: CountingSelector) -> None:
        self._loop = loop
        self._selector = selector
        self._seen: tuple[int, Any] = (0, None)
        self._since = self._last = time.monotonic()
        self._waited = 0.0

    def look(self, thread: threading.Thread) -> None:
        """Sample once; `thread` is the thread of the loop."""
        # Time that a thread waits for a core does not count as blocking.
        waited = _waited_for_a_core(thread)
        now = time.monotonic() - waited
        late, self._last = now + waited - self._last - self._waited > _LATE_SECONDS, now
        self._waited = waited
        task = asyncio.current_task(self._loop)
        seen = (self._selector.turns, task)
        # If this thread also has to wait, the machine is busy, and no code is to blame.
        if late or task is None or seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > _MOST_SECONDS:
            self._since = now
            # Python's own way to see another thread.
            self._tell(sys._current_frames().get(thread.ident or 0))  # noqa: SLF001

    def _tell(self, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename.startswith(_NOBODYS):
            frame = frame.f_back
        if frame is None or (frame.f_code.co_filename, frame.f_lineno) in self.told:
            return
        self.told.add((frame.f_code.co_filename, frame.f_lineno))
        warnings.warn(
            f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno}) held the event loop for more "
            f"than {_MOST_SECONDS * 1e3:.0f} ms, while every other rollout stood still; await what takes long, such as "
            'asyncio.to_thread(...) or group.side_effect(...), and let an environment that does run with runs="thread"',
            RuntimeWarning,
            stacklevel=2,
        )


def _waited_for_a_core(thread: threading.Thread) -> float:
    """Return the total seconds that a runnable thread waited for a core; 0 if the system does not report them."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_bytes().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
