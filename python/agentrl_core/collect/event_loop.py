"""Run rollout programs in an event loop in its own thread: limits on branches, a watchdog, release of memory."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import heapq
import itertools
import os
import selectors
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

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
_NEW_OBJECTS = 20_000
"""Number of new objects after which Python collects cycles."""
_TRIM_TOKENS = 1 << 17
"""Smallest batch in stored tokens for which `trim_heap` trims."""

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
            "a rollout program cannot call the collector, because both use the same event loop; start "
            "branches with group.spawn instead"
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

    with relaxed_gc:
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
        """Sample the loop once, and warn if one call has run for too long; `thread` is the thread of the loop."""
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


class Slots:
    """Slots held by a group: as many as it needs, or all of the limiter if it needs more.

    Args:
        limiter: of the slots.
        needed: number of slots.
    """

    def __init__(self, limiter: SlotLimiter, needed: int) -> None:
        self._limiter = limiter
        self._needed = needed
        self.held = min(needed, limiter.size)

    def release_slots(self, count: int) -> None:
        """Reduce the number of needed slots, and release the excess."""
        self._needed = max(self._needed - count, 0)
        excess = max(self.held - self._needed, 0)
        self.held -= excess
        self._limiter.give(excess)


class SlotLimiter:
    """Limit the branches that run at once: `size` slots, one for each branch.

    Requests of the oldest iteration come first, then in order of arrival. A group that needs more slots than exist
    starts when no other runs.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def take(self, count: int, iteration: int = 0) -> AsyncIterator[Slots]:
        """Wait for `count` slots, earlier iterations first, and hold them during an `async with` block."""
        slots = Slots(self, count)
        count = slots.held
        if self._waiting or count > self._free:
            future = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (iteration, next(self._order), count, future))
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():  # the slots were granted at the moment of cancellation
                    self.give(count)
                raise
        else:
            self._free -= count
        try:
            yield slots
        finally:
            self.give(slots.held)

    def give(self, count: int) -> None:
        """Take back slots, and give them to waiting groups."""
        self._free += count
        while self._waiting and self._waiting[0][2] <= self._free:
            *_, count, future = heapq.heappop(self._waiting)
            if not future.cancelled():
                self._free -= count
                future.set_result(None)


def slot_limiters(concurrency: int | Mapping[str, int], worlds: Iterable[str]) -> dict[str, SlotLimiter]:
    """Return the limiter of each environment: one for all, or one each."""
    if isinstance(concurrency, Mapping):
        return {world: SlotLimiter(concurrency[world]) for world in worlds}
    shared = SlotLimiter(concurrency)
    return dict.fromkeys(worlds, shared)


def trim_heap(tokens: int) -> None:
    """Return free memory to the system before the training step, if the iteration stored many tokens.

    Rollouts run in a thread, and glibc keeps freed memory of that thread for itself, about as much as the batch. Other
    C libraries need no trimming.
    """
    trim = _trim()
    if tokens >= _TRIM_TOKENS and trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    """Return `malloc_trim` of glibc, which returns free memory to the system; None on other systems."""
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

    def __enter__(self) -> None:
        """Count one more running program."""
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._before = gc.get_threshold()
                first, *others = self._before
                if first:  # otherwise it never collects
                    gc.set_threshold(max(first, _NEW_OBJECTS), *others)
                self._set = gc.get_threshold()

    def __exit__(self, *error: object) -> None:
        """Count an ended program; after the last one restore the settings, unless they were changed meanwhile."""
        with self._lock:
            self._running -= 1
            if not self._running and gc.get_threshold() == self._set:
                gc.set_threshold(*self._before)

    def reset_after_fork(self) -> None:
        """Reset the count in a forked child, whose parent may have held the lock."""
        self._lock = threading.Lock()
        if self._running:
            self._running = 1
            self.__exit__()


relaxed_gc = _RelaxedGc()
"""Lets Python collect garbage rarely in a `with` block, in all threads."""
os.register_at_fork(after_in_child=relaxed_gc.reset_after_fork)
