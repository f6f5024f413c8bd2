"""Where episodes run: in the loop itself, in threads, or in processes of our own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import multiprocessing
import pickle
import queue
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from agentrl_core.env.base import Environment, Outcome, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.runtime import Joint

_MOST_THREADS = 256
_IDLE_SECONDS = 10.0


class WorkerDiedError(Exception):
    """A process that runs episodes died; `culprit`: while it ran this very call."""

    def __init__(self, message: str, *, culprit: bool) -> None:
        super().__init__(message)
        self.culprit = culprit


class OverdueError(Exception):
    """A call took longer than it may."""


@dataclass(frozen=True)
class Begin:
    """What an episode began with, unchecked."""

    observation: Any
    state_key: Any
    tools: Any


@dataclass(frozen=True)
class Reply:
    """What a step gave, the state behind it, and a snapshot where the episode makes any; unchecked."""

    outcome: Any
    state_key: Any
    snapshot: Any


def begin(environment: Environment, task: Task, seed: int) -> tuple[Any, Begin]:
    """A fresh episode and what it begins with."""
    return _begun(environment, environment.reset(task, seed))


def _begun(environment: Environment, episode: Any) -> tuple[Any, Begin]:
    joint = hasattr(episode, "observations")
    for name in ("observations", "turn_of", "step", "state_key") if joint else ("observation", "step", "state_key"):
        if not hasattr(episode, name):
            raise InvalidInputError(
                f"environment {type(environment).__name__}: reset gave {episode!r:.60} (a {type(episode).__name__}), "
                f"which has no {name!r}; return an Episode: an object with observation, step(action) and state_key()"
            )
    observation = Joint(dict(episode.observations), tuple(episode.turn_of())) if joint else episode.observation
    return episode, Begin(observation, episode.state_key(), getattr(episode, "tools", None))


def restore(environment: Any, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None) -> Any:
    """An episode behind some actions, by the environment's own way; and its state."""
    episode = environment.restore(task, seed, actions, snapshot)
    return episode, episode.state_key()


def act(episode: Any, action: Any) -> Reply:
    """One step."""
    return _replied(episode, episode.step(action))


def _replied(episode: Any, outcome: Any) -> Reply:
    if hasattr(episode, "observations"):
        outcome = Joint(dict(outcome), tuple(episode.turn_of())) if isinstance(outcome, Mapping) else outcome
        goes_on = isinstance(outcome, Joint) and bool(outcome.turn_of)
    else:
        goes_on = isinstance(outcome, Outcome) and not (outcome.terminated is True or outcome.truncated is True)
    snapshot = getattr(episode, "snapshot", None)
    return Reply(
        outcome, episode.state_key() if goes_on else None, snapshot() if goes_on and snapshot is not None else None
    )


def end(episode: Any) -> None:
    """Close an episode that can be closed. It is over: nobody waits for what that may raise."""
    close = getattr(episode, "close", None)
    if close is not None:
        with contextlib.suppress(Exception):
            close()


class Workers(Protocol):
    """Where the episodes of an environment run. Handles stand for episodes."""

    async def begin(self, task: Task, seed: int, seconds: float | None) -> tuple[Any, Begin]:
        """A fresh episode: its handle, and what it begins with."""
        ...

    async def restore(
        self, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None, seconds: float | None
    ) -> tuple[Any, Any]:
        """An episode behind some actions: its handle and state."""
        ...

    async def act(self, handle: Any, action: Any, seconds: float | None) -> Reply:
        """One step."""
        ...

    def end(self, handle: Any) -> None:
        """Close an episode, without waiting for it."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class Inline:
    """In the loop itself: for what is pure and fast, and for what is asynchronous."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def begin(self, task: Task, seed: int, seconds: float | None) -> tuple[Any, Begin]:
        """See `Workers`."""
        made: Any = self._environment.reset(task, seed)
        if inspect.isawaitable(made):
            made = await _in_time(made, seconds)
        return _begun(self._environment, made)

    async def restore(
        self, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None, seconds: float | None
    ) -> tuple[Any, Any]:
        """See `Workers`."""
        made: Any = self._environment.restore(task, seed, actions, snapshot)  # type: ignore[attr-defined]
        if inspect.isawaitable(made):
            made = await _in_time(made, seconds)
        return made, made.state_key()

    async def act(self, handle: Any, action: Any, seconds: float | None) -> Reply:
        """See `Workers`."""
        outcome = handle.step(action)
        if inspect.isawaitable(outcome):
            outcome = await _in_time(outcome, seconds)
        return _replied(handle, outcome)

    def end(self, handle: Any) -> None:
        """See `Workers`."""
        end(handle)

    def close(self) -> None:
        """Nothing to end."""


async def _in_time(awaitable: Any, seconds: float | None) -> Any:
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except TimeoutError:
        raise OverdueError(f"it took longer than {seconds} s") from None


class _Job:
    """A call that a thread runs."""

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.began: float | None = None
        self.abandoned = False

    def run(self) -> None:
        """Run it, and hand over what it gives."""
        self.began = time.monotonic()
        try:
            value, error = self.function(), None
        except BaseException as raised:  # noqa: BLE001 -- whatever it is, the one who waits gets it
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


class Threads:
    """In threads of our own, started as they are needed. One that hangs is abandoned, and another takes its place."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._waiting = 0
        self._lock = threading.Lock()

    async def begin(self, task: Task, seed: int, seconds: float | None) -> tuple[Any, Begin]:
        """See `Workers`."""
        return await self._call(lambda: begin(self._environment, task, seed), seconds)  # type: ignore[no-any-return]

    async def restore(
        self, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None, seconds: float | None
    ) -> tuple[Any, Any]:
        """See `Workers`."""
        call = lambda: restore(self._environment, task, seed, actions, snapshot)  # noqa: E731
        return await self._call(call, seconds)  # type: ignore[no-any-return]

    async def act(self, handle: Any, action: Any, seconds: float | None) -> Reply:
        """See `Workers`."""
        return await self._call(lambda: act(handle, action), seconds)  # type: ignore[no-any-return]

    def end(self, handle: Any) -> None:
        """See `Workers`."""
        if hasattr(handle, "close"):
            self._put(_Job(lambda: end(handle), asyncio.get_running_loop()))

    def close(self) -> None:
        """End the threads that wait."""
        with self._lock:
            waiting = self._waiting
        for _ in range(waiting):
            self._jobs.put(None)

    async def _call(self, function: Callable[[], Any], seconds: float | None) -> Any:
        job = _Job(function, asyncio.get_running_loop())
        self._put(job)
        left = seconds
        while True:
            done, _ = await asyncio.wait({job.future}, timeout=left)
            if done or seconds is None:
                return job.future.result()
            left = seconds if job.began is None else job.began + seconds - time.monotonic()
            if left <= 0:
                job.abandoned = True
                with self._lock:
                    self._threads -= 1
                raise OverdueError(f"it took longer than {seconds} s")

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
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                job = None
            with self._lock:
                self._waiting -= 1
                self._threads -= job is None
            if job is None:
                return
            job.run()
            if job.abandoned:
                return  # another thread has taken its place


class Processes:
    """In processes of our own. An episode stays in the process where it began; one that hangs or crashes is killed.

    Args:
        environment: is sent to each process once, so it has to pickle.
        count: how many processes.
    """

    def __init__(self, environment: Environment, count: int) -> None:
        self._environment = environment
        self._workers: list[_Process | None] = [None] * count
        self._numbers = itertools.count()
        weakref.finalize(self, _kill, self._workers)

    async def begin(self, task: Task, seed: int, seconds: float | None) -> tuple[Any, Begin]:
        """See `Workers`."""
        worker, number = self._worker(), next(self._numbers)
        first = await worker.open("begin", number, (task, seed), seconds)
        return (worker, number), first

    async def restore(
        self, task: Task, seed: int, actions: Sequence[Any], snapshot: bytes | None, seconds: float | None
    ) -> tuple[Any, Any]:
        """See `Workers`."""
        worker, number = self._worker(), next(self._numbers)
        state = await worker.open("restore", number, (task, seed, list(actions), snapshot), seconds)
        return (worker, number), state

    async def act(self, handle: Any, action: Any, seconds: float | None) -> Reply:
        """See `Workers`."""
        worker, number = handle
        return await worker.call("act", number, (action,), seconds)  # type: ignore[no-any-return]

    def end(self, handle: Any) -> None:
        """See `Workers`."""
        worker, number = handle
        worker.send("end", number, ())

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            if worker is not None:
                worker.kill("the collector was closed")

    def _worker(self) -> _Process:
        """The process with the fewest episodes; a dead one is replaced."""
        for place, worker in enumerate(self._workers):
            if worker is None or worker.dead:
                self._workers[place] = _Process(self._environment)
        return min((worker for worker in self._workers if worker is not None), key=lambda worker: worker.episodes)


def _kill(workers: list[_Process | None]) -> None:
    """End processes that nobody will ask any more; their loop is told by the end of what they say."""
    for worker in workers:
        if worker is not None and not worker.dead:
            worker.process.kill()


class _Process:
    """One process, and the calls that wait for it."""

    def __init__(self, environment: Environment) -> None:
        self.dead = False
        self.episodes = 0
        try:
            sent = pickle.dumps(environment)
        except Exception as error:
            raise InvalidInputError(
                f'environment {type(environment).__name__} runs="process", but cannot be sent to one: {error}; make '
                'it picklable, or let it run in threads: runs="thread"'
            ) from error
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), name="agentrl-episodes", daemon=True)
        self.process.start()
        theirs.close()
        self._connection.send_bytes(sent)
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        """Whether it has the environment; an interpreter takes a while to start, which is on nobody's clock."""
        self._calls: dict[int, asyncio.Future[Any]] = {next(self._numbers): self._ready}
        """In the order in which they are run."""
        self._unsent: deque[tuple[int, str, int, tuple[Any, ...]]] = deque()
        self._idle = False
        self._loop.add_reader(self._connection.fileno(), self._receive)

    async def open(self, method: str, episode: int, arguments: tuple[Any, ...], seconds: float | None) -> Any:
        """Have an episode made."""
        self.episodes += 1
        try:
            return await self.call(method, episode, arguments, seconds)
        except BaseException:
            self.episodes -= 1
            raise

    async def call(self, method: str, episode: int, arguments: tuple[Any, ...], seconds: float | None) -> Any:
        """Have a method of an episode called."""
        await asyncio.shield(self._ready)
        future = self.send(method, episode, arguments)
        if seconds is None:
            return await future
        # The clock of a call runs from when those before it are done.
        while True:
            before = next(iter(self._calls), None)
            done, _ = await asyncio.wait({future}, timeout=seconds)
            if done:
                return future.result()
            if before is not None and self._calls.get(before) is future:
                self.kill(f"a call took longer than {seconds} s", overdue=True)

    def send(self, method: str, episode: int, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Send a call; the future is for its answer."""
        future = self._loop.create_future()
        if self.dead:
            future.set_exception(WorkerDiedError("the process of the episode had died", culprit=False))
            future.exception()
            return future
        self.episodes -= method == "end"
        number = next(self._numbers)
        self._calls[number] = future
        self._unsent.append((number, method, episode, arguments))
        self._send_next()
        return future

    def _send_next(self) -> None:
        """Send the next call, if none is with the process: two sides that write to full pipes would wait for ever."""
        if self._idle and self._unsent:
            self._idle = False
            try:
                self._connection.send(self._unsent.popleft())
            except OSError:
                self.kill("the process of the episode died")

    def kill(self, reason: str, *, overdue: bool = False) -> None:
        """End it; whoever waits is told."""
        if self.dead:
            return
        self.dead = True
        self._loop.remove_reader(self._connection.fileno())
        self.process.kill()
        self.process.join()
        self._connection.close()
        calls, self._calls = list(self._calls.values()), {}
        for place, future in enumerate(calls):
            if not future.done():
                culprit = place == 0
                error = OverdueError(reason) if culprit and overdue else WorkerDiedError(reason, culprit=culprit)
                future.set_exception(error)
                future.exception()  # somebody may have stopped waiting

    def _receive(self) -> None:
        try:
            while self._connection.poll():
                number, value, error = self._connection.recv()
                self._idle = True
                future = self._calls.pop(number, None)
                if future is None or future.done():
                    continue
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)
            self._send_next()
        except (EOFError, OSError):
            code = self.process.exitcode
            self.kill(f"the process of the episode died{'' if code is None else f' (exit code {code})'}")


def _serve(connection: Connection) -> None:
    """Run episodes, one call after the other, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the one who collects
    try:
        environment = pickle.loads(connection.recv_bytes())  # noqa: S301 -- our own process sent it
    except Exception as unmade:  # noqa: BLE001 -- whatever somebody's class does when it is unpickled
        message = f"the environment was sent to a process, and cannot be made there: {type(unmade).__name__}: {unmade}"
        connection.send((0, None, InvalidInputError(f'{message}; make it picklable, or let it run with runs="thread"')))
        return
    connection.send((0, None, None))
    episodes: dict[int, Any] = {}
    while True:
        try:
            number, method, episode, arguments = connection.recv()
        except (EOFError, OSError):
            return
        value: Any = None
        error: Exception | None = None
        try:
            if method == "begin":
                episodes[episode], value = begin(environment, *arguments)
            elif method == "restore":
                episodes[episode], value = restore(environment, *arguments)
            elif method == "act":
                value = act(episodes[episode], *arguments)
            else:
                end(episodes.pop(episode, None))
        except Exception as raised:  # noqa: BLE001 -- the one who asked gets it
            error = raised
        try:
            connection.send((number, value, error))
        except (pickle.PicklingError, TypeError, AttributeError) as unsent:
            what = f"{value!r:.200}" if error is None else f"{type(error).__name__}: {error}"
            connection.send((number, None, RuntimeError(f"{what} (which could not be sent: {unsent})")))
