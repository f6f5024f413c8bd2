"""The event loop that programs run on: one thread of its own, in scripts, in Jupyter and in asynchronous code."""

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

# How often whoever watches sees how it goes, and how long a cancelled program may take to clean up.
_WATCH_SECONDS = 0.1
_CLEAN_UP_SECONDS = 5.0

_lock = threading.Lock()
_loops: dict[int, _Running] = {}
"""The loop of this process; a forked child has none of its parent's threads."""


@dataclass(frozen=True)
class _Running:
    loop: asyncio.AbstractEventLoop
    selector: CountingSelector
    thread: threading.Thread


def _forget() -> None:
    """A forked child begins without a loop; its parent may just have held the lock."""
    global _lock  # noqa: PLW0603 -- there is one for each process
    _lock = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop for good: a KeyboardInterrupt or SystemExit out of somebody's code ends it each time."""
    while True:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):  # the one who waits for the task gets it
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
    """Run a coroutine on the loop and wait for what it gives.

    A Ctrl-C in the waiting thread cancels the coroutine, waits until it has cleaned up, and is raised.

    Args:
        make: makes the coroutine, on the loop.
        watch: called in the waiting thread, ten times a second and in the end.
        alone: whether nothing else of this process has much to do, so that code which holds the loop is told. Beside
            a trainer that steps, the loop waits for the interpreter, and nobody is to blame.

    Raises:
        InvalidInputError: it is called by code that runs on this loop itself, such as a rollout program.
    """
    running = _running()
    loop = running.loop
    if _runs_on(loop):
        raise InvalidInputError(
            "a rollout program cannot collect: it runs on the loop that collecting waits for; use group.spawn"
        )
    tasks: list[asyncio.Task[Value]] = []
    done = threading.Event()

    def start() -> None:
        tasks.append(loop.create_task(make()))
        tasks[0].add_done_callback(lambda _: done.set())

    def cancel() -> None:
        # Behind `start`, if that was called at all.
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


def _runs_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # none runs in this thread
        return False
