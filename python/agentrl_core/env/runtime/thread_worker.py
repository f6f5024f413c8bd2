"""Episodes in threads of this process."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentrl_core.env.base import Environment, Task
from agentrl_core.env.runtime.worker import OverdueError, RawStart, RawStep, act, begin, end, restore
from agentrl_core.exceptions import InvalidInputError

_MOST_THREADS = 256
_IDLE_SECONDS = 10.0
_MOST_ABANDONED = 256


class _Job:
    """A call for a thread, with the future of its result."""

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.began: float | None = None
        self.abandoned = False

    def run(self) -> None:
        """Execute the call, and pass its result to the event loop."""
        self.began = time.monotonic()
        try:
            value, error = self.function(), None
        except BaseException as raised:  # noqa: BLE001 -- every error is passed to the waiting caller
            value, error = None, raised
        if not self.abandoned:
            self.loop.call_soon_threadsafe(self._done, value, error)

    def _done(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)
            self.future.exception()  # mark as retrieved: the caller may be gone after another branch failed


class ThreadWorkers:
    """Workers that are threads of this process, started on demand.

    A hanging thread is abandoned and replaced by another one, until too many hang.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._waiting = 0
        self._abandoned = 0
        """Number of abandoned threads whose call has not returned."""
        self._closed = False
        self._lock = threading.Lock()

    async def begin(self, task: Task, seed: int, seconds: float | None) -> tuple[Any, RawStart]:
        """Start an episode in a thread; return the episode as its handle, and its first observation."""
        return await self._call(lambda: begin(self._environment, task, seed), seconds)  # type: ignore[no-any-return]

    async def restore(
        self, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None, seconds: float | None
    ) -> tuple[Any, Any]:
        """Restore an episode in a thread; return the episode as its handle, and its state."""
        call = lambda: restore(self._environment, task, seed, actions, snapshot)  # noqa: E731
        return await self._call(call, seconds)  # type: ignore[no-any-return]

    async def act(self, handle: Any, action: Any, seconds: float | None) -> RawStep:
        """Execute one step of an episode in a thread."""
        return await self._call(lambda: act(handle, action), seconds)  # type: ignore[no-any-return]

    def end(self, handle: Any) -> None:
        """Close an episode in a thread, without waiting for it."""
        if hasattr(handle, "close"):
            self._put(_Job(lambda: end(handle), asyncio.get_running_loop()))

    def close(self) -> None:
        """End the idle threads; the others end after their call."""
        with self._lock:
            self._closed = True
            waiting = self._waiting
        for _ in range(waiting):
            self._jobs.put(None)

    async def _call(self, function: Callable[[], Any], seconds: float | None) -> Any:
        job = _Job(function, asyncio.get_running_loop())
        self._put(job)
        remaining = seconds
        while True:
            done, _ = await asyncio.wait({job.future}, timeout=remaining)
            if done or seconds is None:
                return job.future.result()
            remaining = seconds if job.began is None else job.began + seconds - time.monotonic()
            if remaining <= 0:
                with self._lock:
                    job.abandoned = True
                    self._threads -= 1
                    self._abandoned += 1
                    abandoned = self._abandoned
                if abandoned > _MOST_ABANDONED:
                    raise InvalidInputError(
                        f"environment {type(self._environment).__name__}: {abandoned} calls took longer than "
                        f'{seconds} s, and their threads still hang; use processes, which can be killed: runs="process"'
                    )
                raise OverdueError(f"it took longer than {seconds} s", abandoned=True)

    def _put(self, job: _Job) -> None:
        with self._lock:
            if self._waiting <= self._jobs.qsize() and self._threads < _MOST_THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="agentrl-episode", daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._waiting += 1
            try:
                job = self._jobs.get(timeout=0.0 if self._closed else _IDLE_SECONDS)
            except queue.Empty:
                job = None
            with self._lock:
                self._waiting -= 1
                self._threads -= job is None
            if job is None:
                return
            job.run()
            with self._lock:
                self._abandoned -= job.abandoned
            if job.abandoned:
                return  # another thread has taken its place
