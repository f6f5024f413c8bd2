"""The event loop of programs, in a separate thread, and a watchdog: for scripts, Jupyter and asynchronous code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from agentrl_core.collect.gc_tuning import relaxed_gc
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError

Value = TypeVar("Value")

# Interval of progress reports, and time limit for the cleanup of a cancelled program.
_WATCH_SECONDS = 0.1
_CLEAN_UP_SECONDS = 5.0
LOOK_SECONDS = 0.01
_LATE_SECONDS = 0.04
_MOST_SECONDS = 0.05
_NOBODYS = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")
"""Folders of code that users did not write."""

_lock = threading.Lock()
_loop: _LoopThread | None = None
"""The loop of this process, made on first use."""


class _LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self.selector = CountingSelector()
        self.loop = asyncio.SelectorEventLoop(self.selector)
        self.thread = threading.Thread(target=self._serve, name="agentrl-collect", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        """Keep the loop running: a KeyboardInterrupt or SystemExit of user code stops it each time."""
        while True:
            with contextlib.suppress(KeyboardInterrupt, SystemExit):  # the waiting thread gets the error
                self.loop.run_forever()


def _reset() -> None:
    """Reset the loop in a forked child, which has none of its parent's threads; the parent may have held the lock."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_reset)


def _running() -> _LoopThread:
    global _loop  # noqa: PLW0603 -- there is one for each process
    with _lock:
        if _loop is None:
            _loop = _LoopThread()
        return _loop


def run(
    make: Callable[[], Coroutine[Any, Any, Value]], watch: Callable[[], object] | None = None, *, alone: bool = True
) -> Value:
    """Run a coroutine on the loop and return its result.

    A Ctrl-C in the waiting thread cancels the coroutine, waits until it has cleaned up, and is raised.

    Args:
        make: creates the coroutine, on the loop.
        watch: called in the waiting thread, ten times a second and at the end.
        alone: whether the process is otherwise idle, so that code which blocks the loop is reported. Beside a trainer,
            the loop waits for the interpreter, and no code is to blame.

    Raises:
        InvalidInputError: it is called by code that runs on this loop itself, such as a rollout program.
    """
    running = _running()
    loop = running.loop
    if _runs_on(loop):
        raise InvalidInputError(
            "a rollout program cannot call the collector, because both use the same event loop; use group.spawn"
        )
    tasks: list[asyncio.Task[Value]] = []
    done = threading.Event()

    def start() -> None:
        tasks.append(loop.create_task(make()))
        tasks[0].add_done_callback(lambda _: done.set())

    def cancel() -> None:
        # After `start`, if that was called at all.
        if tasks:
            tasks[0].cancel()
        else:
            done.set()

    with relaxed_gc():
        try:
            loop.call_soon_threadsafe(start)
            watchdog, watched = Watchdog(loop, running.selector), time.monotonic()
            while not done.wait(LOOK_SECONDS):
                if alone:
                    watchdog.look(running.thread)
                if watch is not None and time.monotonic() - watched >= _WATCH_SECONDS:
                    watched = time.monotonic()
                    watch()
            if watch is not None:
                watch()
        except BaseException:
            loop.call_soon_threadsafe(cancel)
            done.wait(_CLEAN_UP_SECONDS)
            raise
    return tasks[0].result()


def post(make: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run a coroutine on the loop without waiting for it, if the loop runs in this process; any thread may call it."""
    running = _loop  # without the lock, which the thread of a finalizer may hold
    if running is None:
        return
    loop, kept = running.loop, set[asyncio.Task[object]]()

    def start() -> None:
        task = loop.create_task(make())
        kept.add(task)
        task.add_done_callback(kept.discard)

    loop.call_soon_threadsafe(start)


def _runs_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # none runs in this thread
        return False


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

    reported: set[tuple[str, int]] = set()  # noqa: RUF012 -- of the process

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
            self._report(sys._current_frames().get(thread.ident or 0))  # noqa: SLF001

    def _report(self, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename.startswith(_NOBODYS):
            frame = frame.f_back
        if frame is None or (frame.f_code.co_filename, frame.f_lineno) in self.reported:
            return
        self.reported.add((frame.f_code.co_filename, frame.f_lineno))
        warnings.warn(
            f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno}) blocked the event loop for more "
            f"than {_MOST_SECONDS * 1e3:.0f} ms, which stops all other rollouts; run slow code with "
            'await asyncio.to_thread(...) or group.side_effect(...), and give a slow environment runs="thread"',
            AgentRLWarning,
            stacklevel=2,
        )


def _waited_for_a_core(thread: threading.Thread) -> float:
    """Return the total seconds that a runnable thread waited for a core; 0 if the system does not report them."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_bytes().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
