"""Routes of an ASGI application for agents: the APIs of OpenAI and Anthropic."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

from agentrl_core.agents.connections import BODY_SECONDS, HEAD_BYTES, HEADERS, OPTIONS, SILENT_SECONDS
from agentrl_core.agents.dialects import chat, completions, messages, responses
from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.request_fields import parsed, shown
from agentrl_core.agents.request_images import decoded_images
from agentrl_core.agents.upstream import ChatResponse, RefusedError
from agentrl_core.exceptions import AgentRLError, EngineError, InvalidInputError, MissingDependencyError, NotFoundError

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise MissingDependencyError(
        "serving a model to other programs needs Starlette and uvicorn: pip install 'agentrl-core[agents]'"
    ) from error


class RefusedRequest(Exception):  # noqa: N818 -- a reply, which never leaves the routes
    """Raised if a request is refused for its sender or headers, or because its body is too large or too slow.

    Args:
        status: HTTP status of the reply.
        kind: kind of the error, as the APIs of OpenAI and Anthropic name it.
        message: the argument, what is wrong, and what to do.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


RETRIES = "x-stainless-retry-count"
"""Header with which the clients of OpenAI and Anthropic count their retries."""


class SessionHandler(Protocol):
    """Interface of objects that answer the requests of one session."""

    histories: dict[str, list[Json]]
    """Items of conversations, by the id of the response that ends them."""

    async def chat(
        self, request: Json, version: int, *, key: str, retry: bool, is_gone: Callable[[], Awaitable[bool]]
    ) -> ChatResponse:
        """Answer a request to `/v1/chat/completions`."""
        ...

    async def complete(
        self, request: Json, version: int, *, key: str, retry: bool, is_gone: Callable[[], Awaitable[bool]]
    ) -> ChatResponse:
        """Answer a request to `/v1/completions`."""
        ...

    async def count(self, request: Json) -> int:
        """Count the prompt tokens of a request to `/v1/chat/completions`."""
        ...


class Routes(ABC):
    """The HTTP routes for agents. Subclasses find the session of a request and list the models.

    Args:
        max_bytes: most bytes of a request's body.
    """

    def __init__(self, max_bytes: int) -> None:
        self.policy_version = 0
        """Version of the weights that generate answers; set it after each update."""
        self._max_bytes = max_bytes

    @abstractmethod
    def session_of(self, request: Request) -> str:
        """Return the name of the session that a request belongs to.

        Raises:
            PermissionError: the key is missing or wrong.
            NotFoundError: there is no such session.
            InvalidInputError: the request names no session.
        """

    @abstractmethod
    def conversation(self, session: str, *, begins: bool) -> SessionHandler:
        """Return the handler of a session.

        Args:
            session: name of the session.
            begins: open the session if it does not exist; otherwise return an empty one that is not recorded.

        Raises:
            InvalidInputError: the session cannot be opened.
        """

    def check_sender(self, request: Request) -> None:  # noqa: B027 -- does nothing if every request needs a key
        """Refuse requests from programs that cannot be agents, such as web pages.

        Raises:
            RefusedRequest: a web page made the request.
        """

    @abstractmethod
    def check_key(self, request: Request) -> None:
        """Refuse management requests (rewards, commits, traces, models) without the required key.

        Raises:
            PermissionError: the key is missing or wrong.
        """

    @abstractmethod
    async def models(self) -> Json:
        """Return the reply of `/v1/models`."""

    @property
    @abstractmethod
    def image_refusal(self) -> str | None:
        """Why images are refused here, and what to do; None: they are accepted."""

    async def ready(self) -> None:  # noqa: B027 - by default there is nothing to check
        """Check, before the first answer, that answers can be generated."""

    def routes(self) -> list[Route]:
        """Return the routes of all dialects, each with and without a session's name as prefix."""
        dialects = {
            "/chat/completions": (chat, "chat"),
            "/completions": (completions, "completions"),
            "/responses": (responses, "responses"),
            "/messages": (messages, "messages"),
        }
        routes = [
            Route(f"{prefix}/v1{path}", self._door(dialect, name), methods=["POST"])
            for prefix in ("", "/s/{session}")
            for path, (dialect, name) in dialects.items()
        ]
        for prefix in ("", "/s/{session}"):
            routes.append(Route(f"{prefix}/v1/messages/count_tokens", self._counter(), methods=["POST"]))
            routes.append(Route(f"{prefix}/v1/models", self.guarded(self._models)))
        return routes

    def guarded(self, work: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Return a route that requires the key of `check_key`."""

        async def answer(request: Request) -> Response:
            self.check_key(request)
            return await work(request)

        return self._reporting_errors(answer, "chat")

    async def body(self, request: Request) -> Json:
        """Read the JSON object in the body of a request."""
        return _object_of(await self._read(request))

    async def _read(self, request: Request) -> bytes:
        """Read the body of a request.

        Raises:
            RefusedRequest: the body is too long, or arrives too slowly.
        """
        parts, length = [], 0
        clock = asyncio.get_running_loop().time
        end = clock() + BODY_SECONDS
        try:
            async with asyncio.timeout_at(min(end, clock() + SILENT_SECONDS)) as limit:
                async for part in request.stream():
                    length += len(part)
                    if length > self._max_bytes:
                        raise RefusedRequest(
                            413, "request_too_large", f"the body has more than {self._max_bytes} bytes; send less"
                        )
                    parts.append(part)
                    limit.reschedule(min(end, clock() + SILENT_SECONDS))
        except TimeoutError:
            raise RefusedRequest(
                408,
                "invalid_request_error",
                f"the body is incomplete after {length} bytes; send it within {BODY_SECONDS:.0f} seconds, "
                f"without a pause of {SILENT_SECONDS:.0f}",
            ) from None
        return b"".join(parts)

    def _door(self, dialect: ModuleType, name: str) -> Callable[[Request], Awaitable[Response]]:
        """Return the route of a dialect."""

        async def reply_to(request: Request) -> Response:
            session_name = self.session_of(request)
            raw = await self._read(request)
            body, key = _object_of(raw), hashlib.sha256(name.encode() + raw).hexdigest()
            dialect.FIELDS(body)
            if name == "responses" and body.get("previous_response_id"):
                body = _continued(self.conversation(session_name, begins=False), body)
            upstream_request = decoded_images(dialect.parse_request(body), self.image_refusal)
            # A session begins after its first request has been checked.
            session = self.conversation(session_name, begins=True)
            await self.ready()
            retry = request.headers.get(RETRIES, "0") not in ("", "0")
            answer = session.complete if name == "completions" else session.chat
            response = await answer(
                upstream_request, self.policy_version, key=key, retry=retry, is_gone=request.is_disconnected
            )
            reply = dialect.reply(response, body, secrets.token_hex(12))
            if name == "responses":
                session.histories[reply["id"]] = responses.history(body, reply)
            if body.get("stream"):
                return StreamingResponse(_sse(dialect.events(reply, body)), media_type="text/event-stream")
            return JSONResponse(reply)

        return self._reporting_errors(reply_to, name)

    def _counter(self) -> Callable[[Request], Awaitable[Response]]:
        """Return the route that counts the tokens of a request to `/v1/messages`."""

        async def count(request: Request) -> Response:
            session_name = self.session_of(request)
            body = await self.body(request)
            messages.FIELDS(body)
            session = self.conversation(session_name, begins=False)
            upstream_request = decoded_images(messages.parse_request(body), self.image_refusal)
            return JSONResponse({"input_tokens": await session.count(upstream_request)})

        return self._reporting_errors(count, "messages")

    def _reporting_errors(
        self, work: Callable[[Request], Awaitable[Response]], name: str
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a route that reports errors in the client's dialect."""

        async def answer(request: Request) -> Response:
            try:
                _check_head(request)
                self.check_sender(request)
                return await work(request)
            except RefusedRequest as error:
                return _failed(name, error.status, error.kind, str(error))
            except ClientDisconnect:
                return _failed(
                    name,
                    400,
                    "invalid_request_error",
                    "the client disconnected before its body was complete; send it again",
                )
            except PermissionError:
                return _failed(
                    name,
                    401,
                    "authentication_error",
                    "the API key is missing or wrong; send it as Authorization: Bearer KEY or x-api-key",
                )
            except RefusedError as error:
                details = error.body.get("error") or {}
                message = details.get("message") if isinstance(details, dict) else None
                return _failed(name, error.status, "invalid_request_error", str(message or error))
            except NotFoundError as error:
                return _failed(name, 404, "not_found_error", str(error))
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
    """Serve an application in a separate thread inside the block; yields its URL. Port 0 selects a free port."""
    config = uvicorn.Config(app, host=host, port=port, lifespan="on", **OPTIONS)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="agentrl endpoint", daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise EngineError(
                f"the endpoint cannot be served at {host}:{port} (the log has the cause); give another host or port"
            )
        thread.join(0.01)
    address = server.servers[0].sockets[0].getsockname()
    try:
        yield f"http://{address[0]}:{address[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _object_of(raw: bytes) -> Json:
    body = parsed(raw or b"{}", "the body")
    if not isinstance(body, dict):
        raise InvalidInputError(f"the body is {shown(body)}; send a JSON object")
    return body


def _check_head(request: Request) -> None:
    """Refuse headers that are too many or too long."""
    headers = request.scope["headers"]
    size = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > HEADERS or size > HEAD_BYTES:
        raise RefusedRequest(
            431,
            "invalid_request_error",
            f"the request has {len(headers)} headers of {size} bytes in all; send at most {HEADERS} headers of "
            f"{HEAD_BYTES} bytes in all",
        )


def key_of(request: Request) -> str:
    """Return the API key of a request, from the header of OpenAI's or of Anthropic's clients."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")


def _continued(session: SessionHandler, body: Json) -> Json:
    """Return a body with the history of its `previous_response_id`, which must be of the same session."""
    reply_id = body["previous_response_id"]
    if reply_id not in session.histories:
        raise NotFoundError(
            f"previous_response_id is {reply_id!r:.80}, which is not of this session; send the whole history in input"
        )
    input_field = body.get("input") or []
    items = [{"role": "user", "content": input_field}] if isinstance(input_field, str) else input_field
    return body | {"input": [*session.histories[reply_id], *items]}


def _sse(events: Iterator[tuple[str | None, Json | None]]) -> Iterator[str]:
    for name, data in events:
        head = "" if name is None else f"event: {name}\n"
        yield f"{head}data: {'[DONE]' if data is None else json.dumps(data, ensure_ascii=False)}\n\n"


def _failed(dialect: str, status: int, kind: str, text: str) -> Response:
    # The message of another program can hold a lone surrogate.
    error: dict[str, Any] = {"type": kind, "message": text.encode(errors="replace").decode()}
    # After a timeout, the rest of the body is not read.
    headers = {"connection": "close"} if status == 408 else None
    if dialect == "messages":
        return JSONResponse({"type": "error", "error": error}, status, headers)
    return JSONResponse({"error": error | {"param": None, "code": None}}, status, headers)
