"""How many branches may be driven at once: groups wait for room in the order in which they asked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """Places for `size` branches.

    A group that needs more than there are in all begins when nobody else runs.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Hold places for so many branches."""
        count = min(count, self._size)
        if self._waiting or count > self._free:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((count, future))
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():  # the places were given in the moment in which it was cancelled
                    self._give(count)
                raise
        else:
            self._free -= count
        try:
            yield
        finally:
            self._give(count)

    def _give(self, count: int) -> None:
        self._free += count
        while self._waiting and self._waiting[0][0] <= self._free:
            count, future = self._waiting.popleft()
            if not future.cancelled():
                self._free -= count
                future.set_result(None)
