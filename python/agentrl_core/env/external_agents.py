"""Agents of any framework as an environment: the collector's engine answers their requests to a model."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, cast

from agentrl_core.env.base import Context, Environment, Message, Split, StepResult, Task
from agentrl_core.env.task_list import TaskList
from agentrl_core.exceptions import AgentRLError, InvalidInputError

# Requests that arrive within this time of each other are answered together. It does not affect stored data.
_TOGETHER_SECONDS = 0.005
# The first conversation is chosen among all requests that a program starts with. The wait lasts until its loop and the
# endpoint's are idle, independent of load; if a loop blocks, at most this long.
_STANDING_SECONDS = 10.0
# Time limit for a rerun program to repeat its recorded request after another request.
_PATIENCE_SECONDS = 60.0
Run = Callable[[Task, str, str], Awaitable[float]] | Callable[[Task, str, str], float]


class Agents:
    """Environment of unmodified agent programs: LangGraph, the OpenAI Agents SDK, smolagents, or a plain client.

    Each episode runs `run(task, base_url, api_key)`. The base URL is that of a local endpoint, which supports OpenAI's
    chat completions, responses and completions, and Anthropic's messages (its clients need the URL without `/v1`).
    A request of the program is the next context of a branch, the collector's engine generates the
    response, and the return value of `run` is the reward; a reward of at least 1 is a success. So every recipe can
    train on agents, with the usual limits, failures, concurrency, store and recovery.

    Sampled tokens stay unchanged when the program continues from a response, even if its client rewrites it. A history
    that it rewrote is a new context. Each conversation (`env.Context`) is a separate trajectory with the reward of the
    episode: sub-agents do not discount each other's rewards. Parallel requests of one program are generated at the same
    time. Temperature, top_p and seed are the collector's, regardless of the request; smaller token limits, `n` and stop
    texts are honoured.

    A program that raises or hangs fails its episode like any environment: it is rerun with the same answers, and after
    two such repairs its branch ends as failed. For that, and to resume after a kill, a program must send the same
    requests if it gets the same answers. A program that ends without a request has failed.

    Args:
        run: a coroutine function, whose runs share a thread; or a plain function, which may block and gets a thread for
            each run.
        tasks: the training tasks, a mapping of splits to tasks, or another environment, whose tasks are used.
        tokenizer: tokenizer of the policy. Its `response_template` (Hugging Face) parses tool calls and reasoning;
            without one, they are parsed in the form in which the chat template renders them. Tools that the template
            does not render are described in the system message, and their calls are parsed in the form described there.
            None: the whole text is the message's content.
        chat_template_kwargs: options of the chat template, such as `{"enable_thinking": False}`; those of a request
            take precedence.
        replayable: False if a program does not repeat its requests.

    Raises:
        MissingDependencyError: the extra `agents` is not installed.
        InvalidInputError: `run` is not callable, there is no task, or an id occurs twice.

    Example:
        >>> import httpx
        >>> import agentrl_core as arl
        >>> from agentrl_core import engine, env, recipes, warm_start
        >>> async def run(task, base_url, api_key):
        ...     ask = {"messages": [{"role": "user", "content": task.question}]}
        ...     async with httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}) as client:
        ...         reply = await client.post(f"{base_url}/chat/completions", json=ask)
        ...     return float(reply.json()["choices"][0]["message"]["content"] == task.payload)
        >>> world = env.Agents(run, [env.Task("sum", "What is 73 + 15?", "sums", "88")])
        >>> _, tokenizer = warm_start.build(env.ReasoningGym(["lcm"]), seed=0)
        >>> collector = arl.Collector(engine.Scripted(tokenizer, ["88", "87"]), world, recipes.GRPO, task_pool=1)
        >>> batch = collector(tasks=1, group_size=2)
        >>> sorted(batch.column("reward", "draw").tolist())
        [0.0, 1.0]
        >>> collector.close(), world.close()
        (None, None)
    """

    runs: ClassVar = "inline"

    def __init__(
        self,
        run: Run,
        tasks: Sequence[Task] | Mapping[Split, Sequence[Task]] | Environment,
        *,
        tokenizer: Any = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        replayable: bool = True,
    ) -> None:
        if not callable(run):
            raise InvalidInputError(f"Agents: run is {run!r}; give a function of (task, base_url, api_key)")
        self._run = run
        lists = isinstance(tasks, (Sequence, Mapping))
        self._source: Any = TaskList("Agents", cast("Any", tasks)) if lists else tasks
        if hasattr(self._source, "task"):
            self.task = self._source.task
        # Imported by name, since the endpoint depends on the environments.
        in_process = importlib.import_module("agentrl_core.agents.in_process_endpoint")
        self._loopback = in_process.InProcessEndpoint(tokenizer, chat_template_kwargs)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        weakref.finalize(self, _close_aside, self._loopback).atexit = False
        self.replayable = replayable

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> Sequence[Task]:
        """Return tasks of a split from the given tasks or environment; see `Environment.tasks`."""
        return cast("Sequence[Task]", self._source.tasks(count, split=split, start=start))

    async def reset(self, task: Task, seed: int) -> AgentEpisode:
        """Start a program for a task, and wait for its first request."""
        del seed  # of the engine's sampling alone
        episode = AgentEpisode(task, self._loopback)
        await episode.begin(lambda: self._start(task, episode), self._runs_on())
        return episode

    async def restore(self, task: Task, seed: int, actions: Sequence[str], snapshot: bytes | None) -> AgentEpisode:
        """Rerun a program, answering its requests with the given actions.

        Parallel requests may arrive in another order: `snapshot` has the states of all, in their original order, as
        JSON.
        """
        del seed
        order = [] if snapshot is None else [str(state) for state in json.loads(snapshot)]
        episode = AgentEpisode(task, self._loopback, order=order)
        await episode.begin(lambda: self._start(task, episode), self._runs_on())
        for number, action in enumerate(actions):
            outcome = await episode.step(action)
            if outcome.terminated:
                raise AgentRLError(
                    f"Agents: run is not deterministic: task {task.task_id!r} ended after {number + 1} answers in the "
                    "replay, but continued at first; make it depend only on the task and the answers"
                )
        await episode.follow()
        return episode

    def close(self) -> None:
        """Close the endpoint, so that later requests fail, and cancel coroutine programs that still run."""
        self._loopback.close()
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            _stop(loop)

    def _start(self, task: Task, episode: AgentEpisode) -> Callable[[], None]:
        """Start the program; return a function that cancels it, which does nothing for plain functions."""
        loop = self._runs_on()
        if loop is None:
            plain = cast("Callable[[Task, str, str], float]", self._run)

            def work() -> None:
                try:
                    event: Any = plain(task, episode.base_url, episode.api_key)
                except BaseException as error:  # noqa: BLE001 -- whatever somebody's agent raises
                    event = _broken(error)
                episode.post_event(event)

            threading.Thread(target=work, name="agentrl agent", daemon=True).start()
            return lambda: None  # it stops at its next request

        run = cast("Callable[[Task, str, str], Awaitable[float]]", self._run)

        async def wait() -> None:
            try:
                event: Any = await run(task, episode.base_url, episode.api_key)
            except BaseException as error:  # noqa: BLE001 -- whatever somebody's agent raises
                event = _broken(error)
            episode.post_event(event)

        running = asyncio.run_coroutine_threadsafe(wait(), loop)
        return lambda: cast("None", running.cancel())

    def _runs_on(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of coroutine programs; None for plain functions."""
        if not any(map(inspect.iscoroutinefunction, (self._run, getattr(self._run, "__call__", None)))):  # noqa: B004
            return None
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_turn, args=(self._loop,), name="agentrl agents", daemon=True).start()
                weakref.finalize(self, _stop, self._loop).atexit = False
            return self._loop


class AgentEpisode:
    """One run of a program: its requests are the observations, the model's responses the actions."""

    def __init__(self, task: Task, loopback: Any, *, order: Sequence[str] = ()) -> None:
        self.contexts: Sequence[Context] = ()
        """Contexts of the first request, and of other requests sent with it."""
        self.base_url = ""
        self.api_key = ""
        self._task = task
        self._loopback = loopback
        self._name = ""
        self._stop: Callable[[], None] = lambda: None
        self._unanswered: deque[Any] = deque()
        """Reported calls without an answer; the first is answered next."""
        self._last: Any = None
        """The last answered call."""
        self._unreported: list[Any] = []
        """Calls that are not reported yet."""
        self._end: list[Any] = []
        """The program's result, after its end."""
        self._order = deque(order)
        """States of earlier calls in order, if the program is rerun."""
        self._lanes: dict[int, int] = {}
        """Conversations in the order of report, by their numbers at the endpoint."""
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    async def begin(self, start: Callable[[], Callable[[], None]], runs: asyncio.AbstractEventLoop | None) -> None:
        """Start the program, and wait for its first request.

        Args:
            start: starts the program, and returns a function that stops it.
            runs: event loop of the program; None: it runs in a thread.

        Raises:
            AgentRLError: the program ended without a request.
        """
        opened = await asyncio.to_thread(self._loopback.open, self.post_event)
        self._name, self.base_url, self.api_key, _ = opened
        try:
            self._stop = start()
            if not self._order:
                self._receive(await self._events.get())
                await self._first(runs)
            outcome = await self._next()
        except BaseException:
            self.close()
            raise
        if outcome.terminated:
            self.close()
            raise AgentRLError(
                f"Agents: run of task {self._task.task_id!r} ended without a request to the model; call the model "
                "at base_url at least once"
            )
        self.contexts = (cast("Context", outcome.context), *outcome.parallel_requests)

    @property
    def observation(self) -> list[Message]:
        """The current request of the program."""
        return cast("list[Message]", list(self._current_call.messages))

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Schemas of the tools in the program's current request."""
        return list(self._current_call.tools or ())

    def state_key(self) -> bytes:
        """Return a digest of the conversation before the next answer."""
        return cast("bytes", self._current_call.state.encode())

    async def step(self, action: str) -> StepResult:
        """Answer the current request, and wait for the program's next request or its end."""
        self._last = self._unanswered.popleft() if self._unanswered else self._current_call
        with suppress(InvalidStateError):  # the caller was cancelled meanwhile
            self._last.answer.set_result(action)
        return await self._next()

    async def follow(self) -> None:
        """Wait until a rerun program has repeated all earlier requests."""
        while self._order:
            self._report(await self._expected(self._order.popleft()))

    def post_event(self, event: Any) -> None:
        """Receive an event of the program from any thread: a request, its reward, or its error."""
        with suppress(RuntimeError):  # the caller was cancelled
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def close(self) -> None:
        """Refuse later requests of the program, and cancel it if it is a coroutine."""
        self._loopback.close_session(self._name)
        self._stop()

    @property
    def _current_call(self) -> Any:
        """Return the next call to answer; at the end, the last answered one."""
        if self._unanswered:
            return self._unanswered[0]
        if self._last is None:
            raise AgentRLError(
                f"Agents: run of task {self._task.task_id!r} has not made a request yet; start episodes with reset"
            )
        return self._last

    async def _next(self) -> StepResult:
        """Wait for the next requests of the program, or its end."""
        has_unanswered = bool(self._unanswered)
        try:
            if self._order and not has_unanswered:
                self._report(await self._expected(self._order.popleft()))
            elif not (has_unanswered or self._unreported or self._end):
                await self._wait_for_calls()
        except asyncio.CancelledError:  # it took too long
            self.close()
            raise
        while not self._events.empty():
            self._receive(self._events.get_nowait())
        if self._end:
            return self._ended()
        parallel_requests: list[Context] = []
        if not self._order:
            # The order of simultaneous requests is random.
            for call in sorted(self._unreported, key=lambda call: (call.state, call.conversation)):
                self._report(call)
                parallel_requests.append(self._context(call, beside=True))
            self._unreported = []
        first = self._current_call
        return StepResult(
            self.observation,
            context=self._context(first),
            parallel_requests=parallel_requests
            if has_unanswered
            else [each for each in parallel_requests if each.conversation != self._lanes[first.conversation]],
        )

    async def _wait_for_calls(self) -> None:
        """Wait for the program's next request, and for those sent at the same time."""
        self._receive(await self._events.get())
        while not self._end:
            try:
                self._receive(await asyncio.wait_for(self._events.get(), _TOGETHER_SECONDS))
            except TimeoutError:
                return

    async def _first(self, runs: asyncio.AbstractEventLoop | None) -> None:
        """Wait for all first requests of the program: until none arrives while its loops run."""
        while not self._end:
            for loop in (runs, self._unreported[0].loop):
                if loop is not None:
                    await _wait_for_loop(loop)
            if self._events.empty():
                return
            while not self._events.empty():
                self._receive(self._events.get_nowait())

    async def _expected(self, state: str) -> Any:
        """Wait for the request with a recorded state; other requests that arrive first are kept."""
        while True:
            for call in self._unreported:
                if call.state == state:
                    self._unreported.remove(call)
                    return call
            if self._end:
                self._ended()
                raise AgentRLError(
                    f"Agents: run is not deterministic: task {self._task.task_id!r} ended earlier in the replay than "
                    "at first; make it depend only on the task and the answers"
                )
            try:
                self._receive(
                    await asyncio.wait_for(self._events.get(), _PATIENCE_SECONDS if self._unreported else None)
                )
            except TimeoutError:
                raise AgentRLError(
                    f"Agents: run is not deterministic: task {self._task.task_id!r} sends other requests in the replay "
                    "than at first; make it depend only on the task and the answers"
                ) from None

    def _receive(self, event: Any) -> None:
        if isinstance(event, self._loopback.call):
            self._unreported.append(event)
        else:
            self._end = [event]

    def _report(self, call: Any) -> None:
        self._lanes.setdefault(call.conversation, len(self._lanes))
        self._unanswered.append(call)

    def _context(self, call: Any, *, beside: bool = False) -> Context:
        """Return the context of a request."""
        tools, options = (list(call.tools or ()), call.options) if call.replaces_history else (None, None)
        context = Context(
            self._lanes[call.conversation], call.replaces_history, tools, call.max_tokens, chat_template_kwargs=options
        )
        if not beside:
            return context
        return replace(context, observation=list(call.messages), state_key=call.state.encode())

    def _ended(self) -> StepResult:
        """Return the last result of an ended program, or raise its error."""
        end = self._end[0]
        if isinstance(end, Exception):
            raise end
        if not isinstance(end, Real):
            raise InvalidInputError(
                f"Agents: run returned {end!r:.60} for task {self._task.task_id!r}; return the reward, a number"
            )
        reward = float(end)
        return StepResult(reward=reward, terminated=True, success=reward >= 1.0)


def _broken(error: BaseException) -> Exception:
    """Wrap an error of a program, so that its exit or cancellation does not affect others."""
    if isinstance(error, Exception):
        return error
    return AgentRLError(f"Agents: run raised {type(error).__name__}: {error}; return the reward from run instead")


async def _wait_for_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until another event loop has run its ready tasks, and a short time longer."""
    elapsed: Future[None] = Future()
    with suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.call_later, _TOGETHER_SECONDS, elapsed.set_result, None)
        await asyncio.wait({asyncio.wrap_future(elapsed)}, timeout=_STANDING_SECONDS)


def _close_aside(loopback: Any) -> None:
    """Close an endpoint in a separate thread, since a finalizer may run in a thread that `close` waits for."""
    with suppress(RuntimeError):  # no thread starts when the interpreter ends
        threading.Thread(target=loopback.close, name="agentrl agents", daemon=True).start()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it is closed already
        loop.call_soon_threadsafe(loop.stop)


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped, then cancel its tasks."""
    loop.run_forever()
    unfinished = asyncio.all_tasks(loop)
    for task in unfinished:
        task.cancel()
    if unfinished:
        loop.run_until_complete(asyncio.wait(unfinished))
    loop.close()
