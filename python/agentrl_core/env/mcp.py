"""Tools of MCP servers, by the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import IO, TYPE_CHECKING, Any

from agentrl_core.env.base import ToolReply
from agentrl_core.exceptions import AgentRLError, InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    import mcp


class MCP:
    """Client of a Model Context Protocol server, which runs as a process with standard input and output.

    `tools` are its tools with their schemas, for a `ToolEnvironment` or any other environment. A call that the server
    refuses, that returns an error, or that takes longer than `seconds`, is a reply with `error=True`. A reply has the
    texts of a result, one per line; other content is named by its type.

    The server starts on the first use of its tools, and ends with `close()`, or with this process. An unpickled copy
    starts its own server. Calls may come from any thread, and run concurrently.

    Args:
        command: the program and its arguments.
        environment: environment variables for the server, besides the few safe ones that the SDK passes on.
        folder: working directory of the server; default: that of this process.
        seconds: time limit of a call, and of the server's start.
        max_characters: longest reply; longer ones are truncated.

    Raises:
        MissingDependencyError: the package mcp is not installed.
        InvalidInputError: an argument is out of range.
        AgentRLError: from `tools` and calls: the server does not start, or has ended. The last lines of its standard
            error are in the message.

    Example:
        >>> server = MCP(["python", "-m", "my_server"])
        >>> server.tools                                                       # doctest: +SKIP
        [MCPTool('add'), MCPTool('search')]
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        seconds: float = 30.0,
        max_characters: int = 10_000,
    ) -> None:
        if isinstance(command, str) or not command:
            raise InvalidInputError(f"MCP: command is {command!r}; give a list of the program and its arguments")
        if seconds <= 0 or max_characters < 1:
            name, value = ("seconds", seconds) if seconds <= 0 else ("max_characters", max_characters)
            raise InvalidInputError(f"MCP: {name} is {value}; give a number above 0")
        _sdk()
        self._settings = (tuple(command), dict(environment or {}), folder, seconds, max_characters)
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    @property
    def tools(self) -> list[MCPTool]:
        """The tools of the server, in the server's order."""
        limit = self._settings[4]
        return [
            MCPTool(self, tool.name, tool.description or "", dict(tool.input_schema), limit)
            for tool in self._connected().tools
        ]

    def call(self, name: str, arguments: Mapping[str, Any]) -> mcp.types.CallToolResult:
        """Call a tool; errors of the SDK are raised unchanged, except that of a closed connection."""
        return self._connected().call(name, arguments)

    def close(self) -> None:
        """End the server; a second call does nothing, and a later tool call restarts the server."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> _Connection:
        with self._lock:
            if self._connection is None:
                command, environment, folder, seconds, _ = self._settings
                self._connection = _Connection(command, environment, folder, seconds)
            return self._connection

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._settings


def _again(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str | os.PathLike[str] | None,
    seconds: float,
    max_characters: int,
) -> MCP:
    return MCP(command, environment=environment, folder=folder, seconds=seconds, max_characters=max_characters)


class MCPTool:
    """A tool of an MCP server, called with its arguments as JSON."""

    def __init__(
        self, server: MCP, name: str, description: str, parameters: dict[str, Any], max_characters: int
    ) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters
        self._server = server
        self._max_characters = max_characters

    def __repr__(self) -> str:
        return f"MCPTool({self.name!r})"

    def __call__(self, text: str) -> ToolReply:
        """Call the tool; `text` is a JSON object with the arguments."""
        try:
            arguments = json.loads(text)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return ToolReply(f"{self.name} takes a JSON object of arguments", error=True)
        try:
            result = self._server.call(self.name, arguments)
        except _sdk().MCPError as error:
            return ToolReply(str(error)[: self._max_characters], error=True)
        parts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
        return ToolReply("\n".join(parts)[: self._max_characters], error=bool(result.is_error))

    def close(self) -> None:
        """End the tool's server."""
        self._server.close()


class _Connection:
    """A running server, and the thread whose event loop communicates with it."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: str | os.PathLike[str] | None,
        seconds: float,
    ) -> None:
        self._command = command
        self._seconds = seconds
        self._stderr: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 -- close() closes it
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ended = False
        self.tools: list[mcp.types.Tool] = []
        self._client: mcp.Client
        ready: Future[None] = Future()
        parameters = _sdk().StdioServerParameters(
            command=command[0],
            args=list(command[1:]),
            env=dict(environment),
            cwd=None if folder is None else str(folder),
        )
        self._thread = threading.Thread(
            target=self._run, args=(parameters, ready), name=f"MCP {command[0]}", daemon=True
        )
        self._thread.start()
        self._finalizer = weakref.finalize(self, _end, self._loop, self._stop, self._thread)
        try:
            ready.result()
        except Exception as error:
            why = f"no answer within {seconds:g} seconds" if isinstance(error, TimeoutError) else _first(error)
            last_lines = self._last_lines()
            self.close()
            raise AgentRLError(
                f"MCP: the server {' '.join(command)!r} does not start: {why}{last_lines}; start it by hand to see why"
            ) from error

    def call(self, name: str, arguments: Mapping[str, Any]) -> mcp.types.CallToolResult:
        if self._ended:
            raise AgentRLError(
                f"MCP: the server {' '.join(self._command)!r} has ended{self._last_lines()}; start it by hand to "
                "see why"
            )
        called = self._client.call_tool(name, dict(arguments), read_timeout_seconds=self._seconds)
        try:
            return asyncio.run_coroutine_threadsafe(called, self._loop).result()
        except _sdk().MCPError as error:
            if error.code == _sdk().types.CONNECTION_CLOSED:
                self._ended = True
                raise AgentRLError(
                    f"MCP: the server {' '.join(self._command)!r} ended during a call of {name}{self._last_lines()}; "
                    "start it by hand to see why"
                ) from error
            raise

    def close(self) -> None:
        self._ended = True
        self._finalizer()
        self._stderr.close()

    def _last_lines(self) -> str:
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().splitlines() if line.strip()][-3:]
        return ": " + " | ".join(lines) if lines else ""

    def _run(self, parameters: mcp.StdioServerParameters, ready: Future[None]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._run_session(parameters, ready))
        except BaseException as error:  # noqa: BLE001 -- raised in the waiting caller
            if not ready.done():
                ready.set_exception(error)
        finally:
            self._loop.close()

    async def _run_session(self, parameters: mcp.StdioServerParameters, ready: Future[None]) -> None:
        sdk = _sdk()
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(self._seconds):
                transport = sdk.stdio_client(parameters, errlog=self._stderr)
                self._client = await stack.enter_async_context(sdk.Client(transport))
                page = await self._client.list_tools()
                self.tools += page.tools
                while page.next_cursor is not None:
                    page = await self._client.list_tools(cursor=page.next_cursor)
                    self.tools += page.tools
            ready.set_result(None)
            await self._stop.wait()


def _end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, thread: threading.Thread) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the server never started, or has ended
        loop.call_soon_threadsafe(stop.set)
    thread.join(10)


def _first(error: BaseException) -> str:
    """Return type and message of an error, or of the first error of an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _sdk() -> Any:
    try:
        import mcp
    except ImportError as error:
        raise MissingDependencyError("MCP needs the package mcp: pip install 'agentrl-core[mcp]'") from error
    return mcp
