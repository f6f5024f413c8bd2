"""Agents of any framework as an environment: the collector's engine answers what they ask a model."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from numbers import Real
from typing import Any, ClassVar, cast

from agentrl_core.env.base import Context, Environment, Message, Outcome, Split, Task
from agentrl_core.env.task_list import TaskList
from agentrl_core.exceptions import InvalidInputError

Run = Callable[[Task, str, str], Awaitable[float]] | Callable[[Task, str, str], float]


class Agents:
    """Programs that call a model, as they are: LangGraph, the OpenAI Agents SDK, smolagents, or a client alone.

    Each episode runs `run(task, base_url, api_key)`. The base URL is that of an endpoint of this machine alone, which
    speaks OpenAI's chat completions and responses and Anthropic's messages (for its clients take the URL without
    `/v1`). What the program asks there is the next context of a branch, the collector's engine answers it, and what
    `run` returns is the reward; a reward of at least 1 is a success. So every recipe trains on what agents say, and
    limits, failures, concurrency, the store and going on after a kill are those of any environment.

    The tokens of an answer stay as they were sampled while the program goes on from it, however its client writes the
    answer back. A history that it rewrote is a new context. Each of its conversations is a lane (`env.Context`), a
    trajectory of its own with the reward of the episode: sub-agents do not discount each other's rewards. Parallel
    requests of one program are answered one after the other. The sampling is the collector's, whatever a request says.

    A program that raises or hangs breaks its episode down as any environment does: it is run again, the answers that it
    got are given again, and after two such repairs its branch has failed. For that, and for going on after a kill, a
    program asks the same where it is answered the same. One that ends without asking anything has failed.

    Args:
        run: a coroutine function; all of them share a thread. A plain function, which may block, gets a thread each.
        tasks: the training tasks, a mapping of splits to tasks, or another environment, whose tasks are taken.
        tokenizer: of the policy: calls of tools and reasoning are found by its `response_template` (Hugging Face).
            None: all that is said is the message's content.
        replayable: False where a program does not ask the same again.

    Raises:
        MissingDependencyError: the extra `agents` is not installed.
        InvalidInputError: `run` cannot be called, no task, or an id twice.

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
        >>> collect = arl.Collector(engine.Scripted(tokenizer, ["88", "87"]), world, recipes.GRPO, task_pool=1)
        >>> batch = collect(tasks=1, group_size=2)
        >>> sorted(batch.column("reward", "draw").tolist())
        [0.0, 1.0]
        >>> collect.close(), world.close()
        (None, None)
    """

    runs: ClassVar = "inline"

    def __init__(
        self,
        run: Run,
        tasks: Sequence[Task] | Mapping[Split, Sequence[Task]] | Environment,
        *,
        tokenizer: Any = None,
        replayable: bool = True,
    ) -> None:
        if not callable(run):
            raise InvalidInputError(f"Agents: run is {run!r}; give a function of (task, base_url, api_key)")
        self._run = run
        lists = isinstance(tasks, (Sequence, Mapping))
        self._source: Any = TaskList("Agents", cast("Any", tasks)) if lists else tasks
        if hasattr(self._source, "task"):
            self.task = self._source.task
        self._shows_tools = tokenizer is None or _shows_tools(tokenizer)
        # By name: the endpoint stands above the environments.
        self._loopback = import_module("agentrl_core.agents.loopback").Loopback(tokenizer)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.replayable = replayable

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> Sequence[Task]:
        """See `Environment.tasks`."""
        return cast("Sequence[Task]", self._source.tasks(count, split=split, start=start))

    async def reset(self, task: Task, seed: int) -> AgentEpisode:
        """Begin a program, up to what it asks first."""
        del seed  # of the engine's sampling alone
        episode = AgentEpisode(task, self._loopback, shows_tools=self._shows_tools)
        await episode.begin(lambda: self._start(task, episode))
        return episode

    async def restore(self, task: Task, seed: int, actions: Sequence[str], snapshot: bytes | None) -> AgentEpisode:
        """A program that was given these answers."""
        del snapshot
        episode = await self.reset(task, seed)
        for number, action in enumerate(actions):
            outcome = await episode.step(action)
            if outcome.terminated:
                raise RuntimeError(f"the agent ended after {number + 1} answers, and asked more before")
        return episode

    def close(self) -> None:
        """End the endpoint, and the programs that are left."""
        self._loopback.close()
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _start(self, task: Task, episode: AgentEpisode) -> Callable[[], None]:
        """Run the program; returns what stops it."""
        if not any(map(inspect.iscoroutinefunction, (self._run, getattr(self._run, "__call__", None)))):  # noqa: B004
            plain = cast("Callable[[Task, str, str], float]", self._run)

            def work() -> None:
                try:
                    event: Any = plain(task, episode.base_url, episode.api_key)
                except BaseException as error:  # noqa: BLE001 -- whatever somebody's agent raises
                    event = _broken(error)
                episode.tell(event)

            threading.Thread(target=work, name="agentrl agent", daemon=True).start()
            return lambda: None  # it stops when it asks again

        run = cast("Callable[[Task, str, str], Awaitable[float]]", self._run)

        async def wait() -> None:
            try:
                event: Any = await run(task, episode.base_url, episode.api_key)
            except BaseException as error:  # noqa: BLE001 -- whatever somebody's agent raises
                event = _broken(error)
            episode.tell(event)

        loop = self._running()
        running = asyncio.run_coroutine_threadsafe(wait(), loop)
        return lambda: cast("None", running.cancel())

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop of all programs that are coroutines."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_turn, args=(self._loop,), name="agentrl agents", daemon=True).start()
            return self._loop


class AgentEpisode:
    """One run of one program: what it asks is what the model sees, and what the model says is its answer."""

    def __init__(self, task: Task, loopback: Any, *, shows_tools: bool) -> None:
        self.base_url = ""
        self.api_key = ""
        self._task = task
        self._loopback = loopback
        self._shows_tools = shows_tools
        self._name = ""
        self._stop: Callable[[], None] = lambda: None
        self._call: Any = None
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    async def begin(self, start: Callable[[], Callable[[], None]]) -> None:
        """Have the program ask.

        Raises:
            RuntimeError: it ended without.
        """
        opened = await asyncio.to_thread(self._loopback.open, self.tell)
        self._name, self.base_url, self.api_key, _ = opened
        try:
            self._stop = start()
            outcome = await self._next()
        except BaseException:
            self.close()
            raise
        if outcome.terminated:
            self.close()
            raise RuntimeError("the agent ended without asking the model anything")

    @property
    def observation(self) -> list[Message]:
        """What the program asks."""
        return cast("list[Message]", list(self._asked.messages))

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Schemas of the tools that it offers, where the template shows any."""
        return list(self._asked.tools or ()) if self._shows_tools else []

    def state_key(self) -> bytes:
        """The conversation that the next answer stands behind."""
        return cast("bytes", self._asked.state.encode())

    async def step(self, action: str) -> Outcome:
        """Answer what it asked, and wait for what it asks next, or for its end."""
        self._asked.answer.set_result(action)
        return await self._next()

    def tell(self, event: Any) -> None:
        """Take what the program does: a call, its reward, or what it raised (from any thread)."""
        with suppress(RuntimeError):  # nobody waits any more
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def close(self) -> None:
        """End the program: what it still asks is refused."""
        self._loopback.shut(self._name)
        self._stop()

    @property
    def _asked(self) -> Any:
        """What it asked last."""
        if self._call is None:
            raise RuntimeError("the agent has not asked anything")
        return self._call

    async def _next(self) -> Outcome:
        try:
            event = await self._events.get()
        except asyncio.CancelledError:  # it took too long
            self.close()
            raise
        if isinstance(event, self._loopback.call):
            self._call = event
            context = Context(event.lane, event.whole, self.tools if event.whole else None)
            return Outcome(self.observation, context=context)
        if isinstance(event, Exception):
            raise event
        if not isinstance(event, Real):
            raise InvalidInputError(
                f"Agents: run gave {event!r:.60} for task {self._task.task_id!r}; return the reward, a number"
            )
        reward = float(event)
        return Outcome(reward=reward, terminated=True, success=reward >= 1.0)


def _broken(error: BaseException) -> Exception:
    """What a program raised, as an error of its own: one that exits or is cancelled takes nobody along."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"the agent ended by {type(error).__name__}: {error}")


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and end what runs in it."""
    loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.close()


def _shows_tools(tokenizer: Any) -> bool:
    """Whether the template says anything of tools."""
    messages = [{"role": "user", "content": "agentrl question"}]
    tool = {
        "type": "function",
        "function": {"name": "agentrl", "description": "a tool", "parameters": {"type": "object", "properties": {}}},
    }
    said = [tokenizer.apply_chat_template(messages, tokenize=False, tools=tools) for tools in (None, [tool])]
    return bool(said[0] != said[1])
