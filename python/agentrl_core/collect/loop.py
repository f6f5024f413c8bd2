"""The event loop that programs run on: one thread of its own, in scripts, in Jupyter and in asynchronous code."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from agentrl_core.exceptions import InvalidInputError

Value = TypeVar("Value")

# How often the caller's thread looks at what goes on, and how long a cancelled program may take to clean up.
_LOOK_SECONDS = 0.1
_CLEAN_UP_SECONDS = 5.0

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""The loop of this process; a forked child has none of its parent's threads."""


def _forget() -> None:
    """A forked child begins without a loop; its parent may just have held the lock."""
    global _lock  # noqa: PLW0603 -- there is one for each process
    _lock = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget)


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="agentrl-collect", daemon=True).start()
        return loop


def run(coroutine: Coroutine[Any, Any, Value], watch: Callable[[], object] | None = None) -> Value:
    """Run a coroutine on the loop and wait for what it gives.

    A Ctrl-C in the waiting thread cancels the coroutine, waits until it has cleaned up, and is raised.

    Args:
        coroutine: what runs.
        watch: called in the waiting thread, ten times a second and in the end.

    Raises:
        InvalidInputError: it is called by code that runs on this loop itself, such as a rollout program.
    """
    loop = _loop()
    try:
        if asyncio.get_running_loop() is loop:
            coroutine.close()
            raise InvalidInputError(
                "a rollout program cannot collect: it runs on the loop that collecting waits for; use group.spawn"
            )
    except RuntimeError:
        pass  # no loop runs in this thread
    done = threading.Event()

    async def whole() -> Value:
        try:
            return await coroutine
        finally:
            done.set()

    future = asyncio.run_coroutine_threadsafe(whole(), loop)
    try:
        while not done.wait(_LOOK_SECONDS):
            if watch is not None:
                watch()
        if watch is not None:
            watch()
        return future.result()
    except BaseException as error:
        future.cancel()
        done.wait(_CLEAN_UP_SECONDS)
        if isinstance(error, CancelledError):
            raise InvalidInputError("the collection was cancelled from outside") from None
        raise
