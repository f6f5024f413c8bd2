"""The doors that agents knock at: the dialects of OpenAI and Anthropic, as routes of an ASGI application."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

from agentrl_core.agents.dialects import chat, completions, messages, responses
from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.upstream import Answer, RefusedError
from agentrl_core.exceptions import AgentRLError, EngineError, InvalidInputError, MissingDependencyError, NotFoundError

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise MissingDependencyError(
        "agents of other programs need Starlette and uvicorn: pip install 'agentrl-core[agents]'"
    ) from error

RETRIES = "x-stainless-retry-count"
"""Header in which the clients of OpenAI and Anthropic say how often they have asked before."""


class Conversation(Protocol):
    """Who answers the requests of one session."""

    histories: dict[str, list[Json]]
    """Items of conversations, by the response that ends them."""

    async def chat(
        self, request: Json, version: int, *, key: str, retry: bool, is_gone: Callable[[], Awaitable[bool]]
    ) -> Answer:
        """Answer a request to `/v1/chat/completions`."""
        ...

    async def complete(
        self, request: Json, version: int, *, key: str, retry: bool, is_gone: Callable[[], Awaitable[bool]]
    ) -> Answer:
        """Answer a request to `/v1/completions`."""
        ...


class Doors(ABC):
    """The routes that agents use. Whoever has them says whose request it is, and which models there are.

    Args:
        max_bytes: of a request's body.
    """

    def __init__(self, max_bytes: int) -> None:
        self.policy_version = 0
        """The version of the weights that answer: whoever gives new ones says so."""
        self._max_bytes = max_bytes

    @abstractmethod
    def conversation(self, request: Request) -> Conversation:
        """Whose request it is.

        Raises:
            PermissionError: the key is missing or wrong.
            NotFoundError: there is no such session.
        """

    @abstractmethod
    def check_key(self, request: Request) -> None:
        """Refuse whoever may not ask for more than answers.

        Raises:
            PermissionError: the key is missing or wrong.
        """

    @abstractmethod
    async def models(self) -> Json:
        """The reply of `/v1/models`."""

    async def ready(self) -> None:  # noqa: B027 - nothing, unless somebody has to look
        """Look whether answers can be given, before the first."""

    def routes(self) -> list[Route]:
        """Those of all dialects, with and without a session's name in front."""
        doors = {
            "/chat/completions": (chat, "chat"),
            "/completions": (completions, "completions"),
            "/responses": (responses, "responses"),
            "/messages": (messages, "messages"),
        }
        routes = [
            Route(f"{prefix}/v1{path}", self._door(dialect, name), methods=["POST"])
            for prefix in ("", "/s/{session}")
            for path, (dialect, name) in doors.items()
        ]
        return routes + [Route(f"{prefix}/v1/models", self.guarded(self._models)) for prefix in ("", "/s/{session}")]

    def guarded(self, work: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """A door for whoever has the key."""

        async def answer(request: Request) -> Response:
            self.check_key(request)
            return await work(request)

        return self._told(answer, "chat")

    async def body(self, request: Request) -> Json:
        """The JSON object that a request brings, which may not be too long."""
        return _parsed(await self._read(request))

    async def _read(self, request: Request) -> bytes:
        parts, length = [], 0
        async for part in request.stream():
            length += len(part)
            if length > self._max_bytes:
                raise OverflowError(f"the body has more than {self._max_bytes} bytes; send less")
            parts.append(part)
        return b"".join(parts)

    def _door(self, dialect: ModuleType, name: str) -> Callable[[Request], Awaitable[Response]]:
        """The door of a dialect."""

        async def reply_to(request: Request) -> Response:
            session = self.conversation(request)
            raw = await self._read(request)
            body, key = _parsed(raw), hashlib.sha256(name.encode() + raw).hexdigest()
            if name == "responses" and body.get("previous_response_id"):
                body = _continued(session, body)
            asked = dialect.asked(body)
            await self.ready()
            retry = request.headers.get(RETRIES, "0") not in ("", "0")
            answer = session.complete if name == "completions" else session.chat
            found = await answer(asked, self.policy_version, key=key, retry=retry, is_gone=request.is_disconnected)
            reply = dialect.reply(found, body, secrets.token_hex(12))
            if name == "responses":
                session.histories[reply["id"]] = responses.history(body, reply)
            if body.get("stream"):
                return StreamingResponse(_sse(dialect.events(reply, body)), media_type="text/event-stream")
            return JSONResponse(reply)

        return self._told(reply_to, name)

    def _told(
        self, work: Callable[[Request], Awaitable[Response]], name: str
    ) -> Callable[[Request], Awaitable[Response]]:
        """Errors in the client's dialect."""

        async def answer(request: Request) -> Response:
            try:
                return await work(request)
            except PermissionError:
                return _failed(name, 401, "authentication_error", "the API key is missing or wrong")
            except RefusedError as error:
                said = error.body.get("error") or {}
                told = said.get("message") if isinstance(said, dict) else None
                return _failed(name, error.status, "invalid_request_error", str(told or error))
            except NotFoundError as error:
                return _failed(name, 404, "not_found_error", str(error))
            except OverflowError as error:
                return _failed(name, 413, "request_too_large", str(error))
            except InvalidInputError as error:
                return _failed(name, 400, "invalid_request_error", str(error))
            except EngineError as error:
                return _failed(name, 502, "api_error", str(error))
            except AgentRLError as error:
                return _failed(name, 500, "api_error", str(error))

        return answer

    async def _models(self, _: Request) -> Response:
        return JSONResponse(await self.models())


@contextmanager
def serving(app: Starlette, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve in a thread of its own; gives the URL. Port 0: any that is free."""
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="agentrl endpoint", daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise EngineError(f"the endpoint cannot be served at {host}:{port}; see the message above")
        thread.join(0.01)
    address = server.servers[0].sockets[0].getsockname()
    try:
        yield f"http://{address[0]}:{address[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _parsed(raw: bytes) -> Json:
    try:
        body = json.loads(raw or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidInputError("the body is no JSON object; give one")
    return body


def key_of(request: Request) -> str:
    """The key that a client shows, as OpenAI's and Anthropic's do."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")


def _continued(session: Conversation, body: Json) -> Json:
    """A body with the history that it names, which is one of its own session."""
    named = str(body["previous_response_id"])
    if named not in session.histories:
        raise NotFoundError(f"there is no response {named[:80]!r} in this session; send the history")
    given = body.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return body | {"input": [*session.histories[named], *items]}


def _sse(events: Iterator[tuple[str | None, Json | None]]) -> Iterator[str]:
    for name, data in events:
        head = "" if name is None else f"event: {name}\n"
        yield f"{head}data: {'[DONE]' if data is None else json.dumps(data, ensure_ascii=False)}\n\n"


def _failed(dialect: str, status: int, kind: str, text: str) -> Response:
    told: dict[str, Any] = {"type": kind, "message": text}
    if dialect == "messages":
        return JSONResponse({"type": "error", "error": told}, status)
    return JSONResponse({"error": told | {"param": None, "code": None}}, status)
