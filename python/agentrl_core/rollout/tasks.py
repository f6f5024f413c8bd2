"""Waiting for several things at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

Value = TypeVar("Value")


class NamedTask(Protocol):
    """A branch, as far as waiting for it goes."""

    @property
    def name(self) -> str:
        """Unique in the run."""
        ...

    def __lt__(self, other: Any) -> bool: ...


def first_completed(waiting: Mapping[asyncio.Future[None], NamedTask]) -> Callable[[], Awaitable[str]]:
    """Waits for whoever ends first, and names it."""

    async def first() -> str:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return min(waiting[task] for task in done).name

    return first


async def gather_or_cancel(coroutines: Sequence[Coroutine[Any, Any, Value]]) -> list[Value]:
    """All of them side by side; one that raises ends the others before it is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        await cancel(tasks)
        raise


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """End what still runs."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
