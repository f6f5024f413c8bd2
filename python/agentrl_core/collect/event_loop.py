"""The event loop of programs, in a separate thread: for scripts, Jupyter and asynchronous code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrl_core.collect.gc_tuning import relaxed_gc
from agentrl_core.collect.watchdog import LOOK_SECONDS, CountingSelector, Watchdog
from agentrl_core.exceptions import InvalidInputError

Value = TypeVar("Value")

# Interval of progress reports, and time limit for the cleanup of a cancelled program.
_WATCH_SECONDS = 0.1
_CLEAN_UP_SECONDS = 5.0

_lock = threading.Lock()
_loops: dict[int, _Running] = {}
"""The loop of this process; a forked child does not have its parent's threads."""


@dataclass(frozen=True)
class _Running:
    loop: asyncio.AbstractEventLoop
    selector: CountingSelector
    thread: threading.Thread


def _forget() -> None:
    """Reset the loop in a forked child; its parent may have held the lock."""
    global _lock  # noqa: PLW0603 -- there is one for each process
    _lock = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Keep the loop running: a KeyboardInterrupt or SystemExit of user code stops it each time."""
    while True:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):  # the waiting thread gets the error
            loop.run_forever()


def _running() -> _Running:
    with _lock:
        running = _loops.get(os.getpid())
        if running is None:
            selector = CountingSelector()
            loop = asyncio.SelectorEventLoop(selector)
            thread = threading.Thread(target=_serve, args=(loop,), name="agentrl-collect", daemon=True)
            running = _loops[os.getpid()] = _Running(loop, selector, thread)
            thread.start()
        return running


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
    running = _loops.get(os.getpid())  # without the lock, which the thread of a finalizer may hold
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
