"""An engine that does a step only when a test allows it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

_SECONDS = 600.0
"""A timeout long enough to mean a hang on a slow machine."""


class Gate:
    """Let an engine do one step at a time: `pass_(n)` returns when it has begun the step after these n."""

    def __init__(self, engine: Any) -> None:
        self.begun, self.allowed = threading.Semaphore(0), threading.Semaphore(0)
        self.running: list[int] = []
        self._engine = engine
        step = engine._step

        def gated() -> Any:
            self.running.append(len(engine._running))
            self.begun.release()
            assert self.allowed.acquire(timeout=_SECONDS)
            engine._mail.put([])  # a message without requests: an engine does one step while something waits
            return step()

        engine._step = gated

    async def stands(self) -> None:
        """Wait until a step begins."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=_SECONDS)

    async def pass_(self, count: int = 1) -> None:
        for _ in range(count):
            self.allowed.release()
            await self.stands()

    async def receives_message(self) -> None:
        """Wait until the stopped engine has a message from another thread to read after the step."""
        assert await asyncio.to_thread(self._has_message)

    def _has_message(self) -> bool:
        end = time.monotonic() + _SECONDS
        while self._engine._mail.empty() and time.monotonic() < end:
            time.sleep(0.001)
        return not self._engine._mail.empty()

    def open(self) -> None:
        self.allowed.release(1000)
