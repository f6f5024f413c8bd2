"""Episodes in other processes or actors: each worker has many episodes and runs one call at a time."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from agentrl_core.env.base import Environment, Task
from agentrl_core.env.runtime.worker import OverdueError, RawStart, RawStep, WorkerDiedError, act, begin, end, restore
from agentrl_core.exceptions import AgentRLError, InvalidInputError

Dumps = Callable[[Any], bytes]


class RemoteWorker(ABC):
    """Base class of workers in a process or an actor: keeps the pending calls, which the worker executes in order.

    Calls of one iteration of the event loop are sent together. The first call creates the environment, without a time
    limit; the time of other calls starts when earlier ones are done.

    Args:
        environment: the environment, sent once.
        where: kind of worker, for messages.
        dumps: serialiser.
    """

    def __init__(self, environment: Environment, where: str, dumps: Dumps) -> None:
        self.dead = False
        self.episodes = 0
        self._loop = asyncio.get_running_loop()
        self._where = where
        self._dumps = dumps
        self._calls: deque[tuple[asyncio.Future[Any], float | None]] = deque()
        """Waiting callers in the order of their calls, each with its time limit."""
        self._started = False
        self._unsent: list[bytes] = []
        self._begun = 0.0
        """Time at which the first of the calls began, as far as this process can tell."""
        self._seconds: float | None = None
        self._look: asyncio.TimerHandle | None = None
        try:
            pickled = dumps(environment)
        except Exception as error:
            raise InvalidInputError(
                f'environment {type(environment).__name__} runs="{where}", but cannot be pickled: {error}; make it '
                'picklable, or set runs="thread"'
            ) from error
        self.send("make", 0, (pickled,), None)

    @abstractmethod
    def deliver(self, messages: list[bytes]) -> None:
        """Send messages to the worker, without waiting."""

    @abstractmethod
    def stop(self) -> None:
        """End the worker at once; may be called from any thread, and repeatedly."""

    @abstractmethod
    def detach(self) -> None:
        """Stop listening to a worker that was stopped."""

    async def open(self, method: str, episode: int, arguments: tuple[Any, ...], seconds: float | None) -> Any:
        """Create an episode in the worker, by `begin` or `restore`, and return the result."""
        self.episodes += 1
        try:
            return await self.send(method, episode, arguments, seconds)
        except BaseException:
            self.end(episode)  # it has no handle, though it may exist
            raise

    def end(self, episode: int) -> None:
        """Close an episode in the worker; its `close` has the time limit of a step."""
        self.episodes -= 1
        self.send("end", episode, (), self._seconds)

    def send(self, method: str, episode: int, arguments: tuple[Any, ...], seconds: float | None) -> asyncio.Future[Any]:
        """Call a method of an episode in the worker; return a future of the result."""
        future = self._loop.create_future()
        if self.dead:
            _fail(future, WorkerDiedError(f"the {self._where} of the episode had died", culprit=False))
            return future
        message = self._dumps((method, episode, arguments))
        if not self._calls:
            self._begun = self._loop.time()
        self._calls.append((future, seconds))
        if seconds is not None:
            self._seconds = seconds
            if self._look is None:
                self._look = self._loop.call_later(seconds, self._check_time)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(message)
        return future

    def answered(self, answers: Sequence[bytes]) -> None:
        """Set the results of the next calls."""
        self._begun = self._loop.time()
        for answer in answers:
            future, _ = self._calls.popleft()
            try:
                value, error = pickle.loads(answer)  # noqa: S301 -- our own process sent it
            except Exception as unread:  # noqa: BLE001 -- user classes may raise anything when unpickled
                value = None
                error = AgentRLError(
                    f"the result of a worker cannot be unpickled in this process: {unread}; return values whose "
                    "classes can be imported here too"
                )
            if not self._started:
                self._started = True
                if error is not None:
                    self._unmade(error)
                    return
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                _fail(future, error)

    def died(self, reason: str) -> None:
        """Fail all pending calls of a dead worker."""
        # If the environment cannot be created, all calls fail, since retries would also fail.
        self._give_up(lambda first: WorkerDiedError(reason, culprit=first or not self._started))

    def _unmade(self, error: Exception) -> None:
        """Fail all calls, because the environment could not be created in the worker."""
        self._give_up(lambda _: error)

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        if not self.dead:
            self.deliver(messages)

    def _check_time(self) -> None:
        """Kill the worker if a call exceeds its time limit."""
        self._look = None
        if not self._calls:
            return
        limit = self._calls[0][1]
        remaining = self._seconds if limit is None else self._begun + limit - self._loop.time()
        if remaining is not None and remaining <= 0:
            reason = f"it took longer than {limit} s"
            self._give_up(
                lambda first: (
                    OverdueError(reason) if first else WorkerDiedError(f"a call before {reason}", culprit=False)
                )
            )
        else:
            self._look = self._loop.call_later(remaining or 0.0, self._check_time)

    def _give_up(self, error: Callable[[bool], Exception]) -> None:
        """Kill the worker, and fail its pending calls; the running one may get another error."""
        if self.dead:
            return
        self.dead = True
        if self._look is not None:
            self._look.cancel()
        self.stop()
        self.detach()
        calls, self._calls = self._calls, deque()
        for place, (future, _) in enumerate(calls):
            _fail(future, error(place == 0))


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a caller may have been cancelled


class WorkerPool:
    """A pool of workers. An episode stays in its worker; a hanging or crashed worker is replaced.

    Args:
        start: starts a worker.
        count: number of workers.
    """

    def __init__(self, start: Callable[[], RemoteWorker], count: int) -> None:
        self._start = start
        self._hosts: list[RemoteWorker | None] = [None] * count
        self._numbers = itertools.count(1)
        weakref.finalize(self, _stop, self._hosts)

    async def begin(self, task: Task, seed: int, seconds: float | None) -> tuple[Any, RawStart]:
        """Start an episode in the worker with the fewest episodes; return its handle and first observation."""
        host, number = self._host(), next(self._numbers)
        first = await host.open("begin", number, (task, seed), seconds)
        return (host, number), first

    async def restore(
        self, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None, seconds: float | None
    ) -> tuple[Any, Any]:
        """Restore an episode in the worker with the fewest episodes; return its handle and state."""
        host, number = self._host(), next(self._numbers)
        state = await host.open("restore", number, (task, seed, list(actions), snapshot), seconds)
        return (host, number), state

    async def act(self, handle: Any, action: Any, seconds: float | None) -> RawStep:
        """Execute one step of an episode in its worker."""
        host, number = handle
        return await host.send("act", number, (action,), seconds)  # type: ignore[no-any-return]

    def end(self, handle: Any) -> None:
        """Close an episode in its worker, without waiting for it."""
        host, number = handle
        host.end(number)

    def close(self) -> None:
        """End all workers."""
        for host in self._hosts:
            if host is not None:
                host.died("the collector was closed")

    def _host(self) -> RemoteWorker:
        """Return the worker with the fewest episodes, and replace a dead one."""
        for place, host in enumerate(self._hosts):
            if host is None or host.dead:
                self._hosts[place] = self._start()
        return min((host for host in self._hosts if host is not None), key=lambda host: host.episodes)


def _stop(hosts: list[RemoteWorker | None]) -> None:
    """Stop workers that have no callers; their closed connection notifies their event loop."""
    for host in hosts:
        if host is not None and not host.dead:
            host.stop()


class WorkerServer:
    """Worker side of a `RemoteWorker`, with the environment and its episodes.

    Args:
        dumps: serialiser.
        raises: errors that end the worker instead of being returned.
    """

    def __init__(self, dumps: Dumps, *, raises: tuple[type[Exception], ...] = ()) -> None:
        self._dumps = dumps
        self._raises = raises
        self._environment: Any = None
        self._episodes: dict[int, Any] = {}

    def answer(self, message: bytes) -> bytes:
        """Execute a call, and return its result."""
        value: Any = None
        error: Exception | None = None
        try:
            method, episode, arguments = pickle.loads(message)  # noqa: S301 -- our own process sent it
            if method == "make":
                self._make(*arguments)
            elif method == "begin":
                self._episodes[episode], value = begin(self._environment, *arguments)
            elif method == "restore":
                self._episodes[episode], value = restore(self._environment, *arguments)
            elif method == "act":
                value = act(self._episodes[episode], *arguments)
            else:
                end(self._episodes.pop(episode, None))
        except self._raises:
            raise
        except Exception as raised:  # noqa: BLE001 -- sent to the caller
            error = raised
        try:
            return self._dumps((value, error))
        except self._raises:
            raise
        except Exception as unsent:  # noqa: BLE001 -- user classes may raise anything when pickled
            what = f"{value!r:.200}" if error is None else f"{type(error).__name__}: {error}"
            error = AgentRLError(f"{what} could not be pickled: {unsent}; return values that pickle can write")
            return self._dumps((None, error))

    def _make(self, environment: bytes) -> None:
        try:
            self._environment = pickle.loads(environment)  # noqa: S301 -- our own process sent it
        except Exception as unmade:
            raise InvalidInputError(
                "the environment could not be unpickled in the worker process: "
                f'{type(unmade).__name__}: {unmade}; make it picklable, or let it run with runs="thread"'
            ) from unmade
