"""Engines that compute in steps: each has a thread, which adds new requests between two steps."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import traceback
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal

from agentrl_core.engine.base import Request, Segment, aborted, check_request, check_version
from agentrl_core.exceptions import AgentRLError, EngineError, InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from agentrl_core.engine.chat import Chat
    from agentrl_core.engine.policy_weights import PolicyWeights

# At exit, the interpreter waits this long for a running step.
_SECONDS_AT_EXIT = 5.0


@dataclass(eq=False)
class _QueuedRequest:
    """A request with a waiting caller."""

    number: int
    request: Request
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Segment]
    leaves: bool = False
    """True if the request must end now: it was aborted, or its caller was cancelled."""


@dataclass(eq=False)
class _Work:
    """A function that runs between two steps, while nothing is being generated."""

    do: Callable[[], None]
    done: threading.Event
    error: BaseException | None = None


# Messages to the thread: requests of one iteration of an event loop, work, cancellations, and the end.
_Mail = list[_QueuedRequest] | _Work | Literal["leaves", "end"]


class ContinuousBatching(ABC):
    """Base of engines that generate token by token for many requests at a time (continuous batching).

    A daemon thread, started by the first request, calls the methods below, and nothing else does. Requests come from
    any event loop of any thread, batched per iteration of the loop. Results of a step return by one
    `call_soon_threadsafe` per loop, in the order of requests. Without requests the thread sleeps, and it does not keep
    an unreferenced engine alive.

    A subclass has `chat`, `vocabulary_size`, `entropy_estimator`, `shares_parameters`, and:

    - `_begin(newcomers)`: adds requests, by number, and returns the errors of those that it refuses; an error that it
      raises does not affect running ones;
    - `_step()`: samples one token for every running request, or more until a request ends or `_mail` has a message;
    - `_end(numbers)`: returns the segments of stopped requests, as aborted ones;
    - `_drop_all()`: drops all requests, after a step that failed;
    - `_check_weights(weights)`: refuses weights that do not match, before any request ends, in the caller's thread;
    - `_replace(weights)`: loads weights while no request runs; it sets `_is_torn` before it changes the first one;
    - `_release()`: frees memory, once, after the last step;
    - `_check(request)`: refuses unsupported requests, in the thread of the caller;
    - optionally `_working()`, in which all steps run, and `takes_images`.

    `_begin` and `_step` return ended segments, by number.
    """

    chat: Chat
    vocabulary_size: int
    shares_parameters: bool
    takes_images = False

    def __init__(self) -> None:
        self.policy_version = 0
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._mail: SimpleQueue[_Mail] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = 0
        self._closed = False
        self._is_torn = False
        """True if an update failed after it had changed a weight."""
        # State of waiting requests, protected by the lock.
        self._open_requests: dict[Request, list[_QueuedRequest]] = {}
        self._turns: dict[asyncio.AbstractEventLoop, list[_QueuedRequest]] = {}
        # State that only the engine's thread uses.
        self._newcomers: dict[int, _QueuedRequest] = {}
        self._running: dict[int, _QueuedRequest] = {}
        self._answers: list[tuple[_QueuedRequest, Segment | AgentRLError]] = []
        self._finished_work: list[_Work] = []
        self._ends = False

    async def generate(self, request: Request) -> Segment:
        """Generate the segment of one request.

        Cancelling the caller drops the request. The caller ends when the engine has dropped it: after the last one, no
        thread uses the model, so that it can be trained or given to another engine.

        Raises:
            InvalidInputError: the value is not a request, or the engine does not support it; the engine is closed, or
                was started by another process.
            EngineError: a step failed; the engine can be used again.
        """
        self._check_open("generate")
        check_request(request, self.vocabulary_size, takes_images=self.takes_images)
        self._check(request)
        loop = asyncio.get_running_loop()
        queued = _QueuedRequest(next(self._numbers), request, loop, loop.create_future())
        self._register(queued)
        try:
            return await asyncio.shield(queued.answer)
        except asyncio.CancelledError:
            queued.leaves = True
            self._mail.put("leaves")
            while not queued.answer.done():
                with suppress(asyncio.CancelledError, AgentRLError):  # the caller can be cancelled again meanwhile
                    await asyncio.shield(queued.answer)
            raise
        finally:
            self._strike(queued)

    def abort(self, request: Request) -> None:
        """End a request between two steps: its `generate` returns the tokens so far, none if it is queued."""
        if self._thread is None or self._process != os.getpid():
            return
        with self._lock:
            for queued in self._open_requests.get(request, ()):
                queued.leaves = True
        self._mail.put("leaves")

    def update_weights(self, model: nn.Module | Mapping[str, Tensor], version: int) -> None:
        """Sample from `model`'s weights from now on and stamp segments with `version`.

        The update runs between two steps; running segments end as aborted, with the old version. Weights are checked
        first: if they do not match, nothing changes. Sharded weights are gathered, and adapters merged in a copy, one
        at a time; the other ranks must call `engine.send_weights` at the same time.

        Args:
            model: a causal model, bare or in its wrappers; or its state dict.
            version: version of the weights, at least 0.

        Raises:
            InvalidInputError: names, shapes or dtypes differ from those of the engine, a weight is not finite, or an
                adapter cannot be merged; the version is not an integer; the engine is closed.
            EngineError: loading the weights failed.
        """
        from agentrl_core.engine.policy_weights import PolicyWeights

        with PolicyWeights(model) as weights:
            self._check_open("update_weights")
            check_version(version)
            self._check_weights(weights)
            self._load(weights, version)

    def _load(self, weights: PolicyWeights, version: int) -> None:
        """Replace the weights in the engine's thread, and wait until it has done so."""

        def replace() -> None:
            self._replace(weights)
            self._is_torn = False
            self.policy_version = version

        work = _Work(replace, threading.Event())
        with self._lock:
            self._check_open("update_weights")
            self._start()
            self._mail.put(work)
        work.done.wait()
        if isinstance(work.error, Exception) and not isinstance(work.error, AgentRLError):
            raise EngineError(
                f"update_weights: {type(self).__name__} could not load the weights ({type(work.error).__name__}: "
                f"{work.error}), and {self._state()}; call update_weights again, or make another engine"
            ) from work.error
        if work.error is not None:
            raise work.error

    def close(self) -> None:
        """End the thread and free memory; running segments end as aborted. A second call does nothing."""
        if self._process not in (0, os.getpid()):
            return  # a forked child has no thread to end, and its memory is the parent's
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._thread is not None:
            self._mail.put("end")
            self._thread.join()
        self._release()

    @abstractmethod
    def _check(self, request: Request) -> None: ...

    @abstractmethod
    def _check_weights(self, weights: PolicyWeights) -> None: ...

    @abstractmethod
    def _begin(self, newcomers: Mapping[int, Request]) -> Mapping[int, Segment | AgentRLError]: ...

    @abstractmethod
    def _step(self) -> Mapping[int, Segment]: ...

    @abstractmethod
    def _end(self, numbers: Sequence[int]) -> Mapping[int, Segment]: ...

    @abstractmethod
    def _drop_all(self) -> None: ...

    @abstractmethod
    def _replace(self, weights: PolicyWeights) -> None: ...

    @abstractmethod
    def _release(self) -> None: ...

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Context of a series of steps, which exits before their last results are sent."""
        yield

    # The following methods run in the threads of callers.

    def _state(self) -> str:
        return "a part of its weights is replaced" if self._is_torn else f"its version is still {self.policy_version}"

    def _check_open(self, method: str) -> None:
        name = type(self).__name__
        if self._is_torn and method == "generate":
            raise EngineError(
                f"generate: the last update_weights of this {name} failed half-way, so its weights are of two "
                "versions; call update_weights again, or make another engine"
            )
        if self._closed:
            raise InvalidInputError(f"{method}: this {name} engine is closed; make another")
        if self._process not in (0, os.getpid()):
            raise InvalidInputError(
                f"{method}: this {name} engine works in process {self._process}, and this is its forked child "
                f"{os.getpid()}, where its thread does not exist; make another engine here"
            )

    def _register(self, queued: _QueuedRequest) -> None:
        """Queue a request; the requests of one iteration of its event loop are sent together."""
        with self._lock:
            self._check_open("generate")
            self._start()
            self._open_requests.setdefault(queued.request, []).append(queued)
            turn = self._turns.setdefault(queued.loop, [])
            if not turn:
                queued.loop.call_soon(self._send, queued.loop)
            turn.append(queued)

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            turn = self._turns.pop(loop)
            if not self._closed:
                self._mail.put(turn)
                return
        _hand_over([(queued, aborted(queued.request, self.policy_version)) for queued in turn])

    def _strike(self, queued: _QueuedRequest) -> None:
        """Remove an answered request from the open ones."""
        with self._lock:
            same = self._open_requests[queued.request]
            same.remove(queued)
            if not same:
                del self._open_requests[queued.request]

    def _start(self) -> None:
        """Start the thread unless it runs; the caller holds the lock."""
        if self._thread is not None:
            return
        arguments = (self._mail, weakref.ref(self))
        self._thread = threading.Thread(target=_serve, args=arguments, name=type(self).__name__, daemon=True)
        self._process = os.getpid()
        self._thread.start()
        weakref.finalize(self, _stop, self._mail, self._thread, self._process)

    # The following methods run in the engine's thread.

    def _serve(self, mail: _Mail) -> bool:
        """Process messages and run steps until no request is left; return False if the thread must end."""
        try:
            self._take(mail)
            while self._newcomers or self._running:
                with self._working():
                    while self._newcomers or self._running:
                        self._advance()
                        self._take_all()
                        if self._newcomers or self._running:
                            self._deliver()
                # The last results are sent after the model is restored, since a caller may train it at once.
                self._deliver()
                self._take_all()
        except BaseException as error:  # noqa: BLE001 -- every waiting caller must get the error
            self._fail(error)
        self._deliver()
        return not self._ends

    def _advance(self) -> None:
        """Start new requests, then run one step."""
        if self._newcomers:
            newcomers, self._newcomers = self._newcomers, {}
            try:
                ended = self._begin({number: queued.request for number, queued in newcomers.items()})
            except Exception as error:  # noqa: BLE001 -- running requests continue
                self._answers += self._failures([*newcomers.values()], error)
            else:
                self._running |= newcomers
                self._answer(ended)
        if self._running:
            self._answer(self._step())

    def _take_all(self) -> None:
        """Process all messages that arrived during a step."""
        with suppress(Empty):
            while True:
                self._take(self._mail.get_nowait())

    def _take(self, mail: _Mail) -> None:
        if isinstance(mail, _Work):
            self._finished_work.append(mail)  # reported with the next results in any case
            try:
                self._abort(list(self._running))
                mail.do()
            except BaseException as error:  # noqa: BLE001 -- raised in the thread that requested the work
                mail.error = error
                if self._running:  # ending the requests failed
                    self._fail(error)
            return
        if isinstance(mail, list):
            self._newcomers |= {queued.number: queued for queued in mail}
        self._ends = self._ends or mail == "end"
        for number in [number for number, queued in self._newcomers.items() if queued.leaves or self._ends]:
            queued = self._newcomers.pop(number)
            self._answers.append((queued, aborted(queued.request, self.policy_version)))
        self._abort([number for number, queued in self._running.items() if queued.leaves or self._ends])

    def _abort(self, numbers: Sequence[int]) -> None:
        if numbers:
            self._answer(self._end(numbers))

    def _answer(self, segments: Mapping[int, Segment | AgentRLError]) -> None:
        self._answers += [(self._running.pop(number), segment) for number, segment in segments.items()]

    def _fail(self, error: BaseException) -> None:
        """Fail all queued and running requests with an error, and drop their computed state."""
        with suppress(Exception):  # a broken engine may also fail to drop its requests
            self._drop_all()
        waiting = [*self._newcomers.values(), *self._running.values()]
        self._newcomers, self._running = {}, {}
        self._answers += self._failures(waiting, error)

    def _failures(
        self, concerned: Sequence[_QueuedRequest], error: BaseException
    ) -> list[tuple[_QueuedRequest, EngineError]]:
        # The frames reference the tensors of the step; clearing them frees the memory after an out-of-memory error.
        traceback.clear_frames(error.__traceback__)
        failures = []
        for queued in concerned:
            failure = EngineError(
                f"{type(self).__name__}: generating for {len(concerned)} requests failed with "
                f"{type(error).__name__}: {error}; send the requests again, as their tokens are lost"
            )
            failure.__cause__ = error
            failures.append((queued, failure))
        return failures

    def _deliver(self) -> None:
        """Send results to the waiting callers, with one call for each event loop."""
        answers, self._answers = self._answers, []
        work, self._finished_work = self._finished_work, []
        answers.sort(key=lambda answer: answer[0].number)
        of_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[_QueuedRequest, Segment | AgentRLError]]] = (
            defaultdict(list)
        )
        for answer in answers:
            of_loop[answer[0].loop].append(answer)
        for loop, ended in of_loop.items():
            with suppress(RuntimeError):  # the loop is closed: there is no caller
                loop.call_soon_threadsafe(_hand_over, ended)
        for each in work:
            each.done.set()


def _hand_over(answers: list[tuple[_QueuedRequest, Segment | AgentRLError]]) -> None:
    """Set the results of requests, in the event loop of their callers."""
    for queued, answer in answers:
        if isinstance(answer, AgentRLError):
            queued.answer.set_exception(answer)
        else:
            queued.answer.set_result(answer)


def _serve(mail: SimpleQueue[_Mail], engine: weakref.ref[ContinuousBatching]) -> None:
    """Run the engine's thread, which references the engine only while it has work."""
    continues = True
    while continues:
        continues = _serve_once(mail.get(), engine)


def _serve_once(mail: _Mail, reference: weakref.ref[ContinuousBatching]) -> bool:
    engine = reference()
    return engine is not None and engine._serve(mail)  # noqa: SLF001 -- its thread


def _stop(mail: SimpleQueue[_Mail], thread: threading.Thread, process: int) -> None:
    """End the thread when the engine is garbage-collected, or when the interpreter exits."""
    if process == os.getpid():
        mail.put("end")
        if thread is not threading.current_thread():
            thread.join(_SECONDS_AT_EXIT)
