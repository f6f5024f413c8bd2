"""Limit the number of concurrent branches: groups wait for slots, those of the oldest iteration first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager


class Slots:
    """Slots held by a group: as many as it needs, or all.

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
    """Slots for `size` branches.

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
        """Hold slots for branches of an iteration; some may be released before the rest."""
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
        """Release slots for waiting groups."""
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
