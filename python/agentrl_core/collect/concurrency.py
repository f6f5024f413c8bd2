"""How many branches may be driven at once: groups wait for room, those of the oldest iteration first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager


class Slots:
    """Places that somebody holds: as many as are needed, or all that there are.

    Args:
        room: whose.
        needed: how many.
    """

    def __init__(self, room: SlotLimiter, needed: int) -> None:
        self._room = room
        self._needed = needed
        self.held = min(needed, room.size)

    def release_slots(self, count: int) -> None:
        """So many fewer are needed; those that are held beyond that are free for others."""
        self._needed = max(self._needed - count, 0)
        freed = max(self.held - self._needed, 0)
        self.held -= freed
        self._room.give(freed)


class SlotLimiter:
    """Places for `size` branches.

    Those of the oldest iteration come first, and of one iteration those who asked first. A group that needs more than
    there are in all begins when nobody else runs.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._asked = itertools.count()

    @asynccontextmanager
    async def take(self, count: int, iteration: int = 0) -> AsyncIterator[Slots]:
        """Hold places for so many branches of an iteration; some can be given back before the rest."""
        places = Slots(self, count)
        count = places.held
        if self._waiting or count > self._free:
            future = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (iteration, next(self._asked), count, future))
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():  # the places were given in the moment in which it was cancelled
                    self.give(count)
                raise
        else:
            self._free -= count
        try:
            yield places
        finally:
            self.give(places.held)

    def give(self, count: int) -> None:
        """So many places are free again, for those who wait."""
        self._free += count
        while self._waiting and self._waiting[0][2] <= self._free:
            *_, count, future = heapq.heappop(self._waiting)
            if not future.cancelled():
                self._free -= count
                future.set_result(None)


def slot_limiters(concurrency: int | Mapping[str, int], worlds: Iterable[str]) -> dict[str, SlotLimiter]:
    """The room of each environment: one for all of them, or each its own."""
    if isinstance(concurrency, Mapping):
        return {world: SlotLimiter(concurrency[world]) for world in worlds}
    shared = SlotLimiter(concurrency)
    return dict.fromkeys(worlds, shared)
