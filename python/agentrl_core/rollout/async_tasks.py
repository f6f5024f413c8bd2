"""Helpers for asyncio tasks: wait for several at once, and let only one await a branch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from agentrl_core.exceptions import InvalidInputError

Value = TypeVar("Value")


async def gather_or_cancel(coroutines: Sequence[Coroutine[Any, Any, Value]]) -> list[Value]:
    """Run coroutines concurrently and return their results; if one raises, cancel the others before raising."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        await cancel(tasks)
        raise


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait for their cleanup."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def unawaited(lock: asyncio.Lock, name: str) -> asyncio.Lock:
    """Return the lock of a branch, or raise an error if a task holds it.

    Raises:
        InvalidInputError: another task awaits the branch, which would make the order non-deterministic.
    """
    if not lock.locked():
        return lock
    task = asyncio.current_task()
    raise InvalidInputError(
        f"branch {name} cannot be awaited in asyncio task {task and task.get_name()!r}, because another task awaits it "
        "already; await a branch in one task only, and fork it for a second task"
    )
