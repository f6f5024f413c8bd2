"""The recording endpoint: an ASGI application that agents use like the model's own server."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from agentrl_core.agents import export as traces
from agentrl_core.agents.answer_suffix import TemplateSuffix
from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.origin_check import check_origin
from agentrl_core.agents.recorder import SessionRecorder
from agentrl_core.agents.records import END, REWARD, TASK, SessionRecord
from agentrl_core.agents.request_fields import Object, Text, shown, whole
from agentrl_core.agents.routes import Routes, key_of, serving
from agentrl_core.agents.session import Session
from agentrl_core.agents.upstream import Upstream
from agentrl_core.data.batch import Batch
from agentrl_core.data.store import Store
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, NotFoundError

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise MissingDependencyError(
        "agentrl_core.agents needs Starlette and uvicorn: pip install 'agentrl-core[agents]'"
    ) from error

NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}\Z")

LISTED = 20
"""Most excluded sessions that the reply to `POST /iterations` names."""

_NAME = Text(least=1, most=128)
_OPEN = Object({"session_id": _NAME, "task_id": TASK, "group": TASK})
_REWARD = Object({"reward": REWARD, "turn": whole(0)}, required=("reward",))
_CLOSE = Object(END)
_WEIGHTS = Object({"version": whole(0, 2**63 - 1)}, required=("version",))


class Endpoint(Routes):
    """HTTP endpoint that records the tokens of agents of any framework; the agents run unchanged.

    Set the agent's base URL and API key to those of the endpoint. It supports OpenAI's chat completions, completions
    and responses, and Anthropic's messages. Each session is an episode, each conversation in it a trajectory
    (see `conversations.SessionConversations`), and each answer a turn, stored once with the token ids and
    log-probs that the engine reported. `app` is an ASGI application; `running` serves it in a thread.

    A request names its session in the path (`/s/NAME/v1`), in the header `X-Session-ID`, or by the API key that `open`
    returned for it (if the endpoint has no key, any key that is a valid name also names a session). If the endpoint has
    a key, requests need it or the session's own key.

    Guarantees: bytes and work grow linearly with the turns of a session; every sampled token is in exactly one
    node; recorded ids are the engine's; a repeated request is answered once; text that an agent edits is never
    trained as if the model had generated it; with a store, recorded answers survive a kill.

    Args:
        upstream: the generator of answers.
        store: a run to write; None: sessions are kept in memory.
        api_key: key that agents and reward programs must send, printable ASCII. None: no key is needed, and
            requests from web pages are refused; only for your own machine.
        max_bytes: most bytes of a request's body.
        max_sessions: most open sessions.

    Raises:
        InvalidInputError: the key is empty or not ASCII, or the store has a batch that no endpoint committed.

    Example:
        >>> from agentrl_core.agents import Endpoint, VllmUpstream
        >>> endpoint = Endpoint(VllmUpstream("http://127.0.0.1:8000"))
        >>> endpoint.open("first", task="6*7")["session_id"]
        'first'
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        store: Store | None = None,
        api_key: str | None = None,
        max_bytes: int = 32 << 20,
        max_sessions: int = 100_000,
    ) -> None:
        super().__init__(max_bytes)
        if api_key is not None and not (api_key and api_key.isascii() and api_key.isprintable()):
            problem = "not printable ASCII" if api_key else "empty"
            raise InvalidInputError(f"api_key is {problem}; give printable ASCII text, or None for no key")
        self.upstream = upstream
        self._recorder = SessionRecorder(store)
        self._template = TemplateSuffix(upstream)
        self._api_key = api_key
        self._max_sessions = max_sessions
        self._keys: dict[str, str] = {}
        """Sessions by the digests of their keys, so that the time of a look-up reveals nothing about other keys."""
        self._sessions = {name: self._session(name) for name in self._recorder.sessions}
        self._checked: asyncio.Task[None] | None = None
        self.app = Starlette(routes=self._all_routes(), lifespan=self._life)

    def open(self, session: str | None = None, *, task: str | None = None, group: str | None = None) -> Json:
        """Begin a session; return its name, its API key and the path of its routes.

        Args:
            session: name of the session; None: a new random name.
            task: name of the task; None: the name of the session.
            group: name of the group; the sessions of a group are compared with each other; None: the task's name.

        Returns:
            `session_id`, `api_key` and `path`; the agent's base URL is the endpoint's URL followed by the path.

        Raises:
            InvalidInputError: the session exists already, its name is invalid, the group has sessions of another task,
                or too many sessions are open.
        """
        session = secrets.token_hex(8) if session is None else session
        _NAME(session, "session_id")
        if not NAME.match(session):
            raise InvalidInputError(f"session_id is {shown(session)}; give letters, digits, _, . and -, at most 128")
        task = session if task is None else task
        with self._recorder.lock:
            if session in self._sessions:
                raise InvalidInputError(
                    f"session_id is {session!r}, which exists already; give another, or leave it out"
                )
            if len(self._sessions) >= self._max_sessions:
                raise InvalidInputError(
                    f"the limit max_sessions={self._max_sessions} of sessions that are open or not committed is "
                    "reached; close some and commit the iteration, or make the endpoint with a larger max_sessions"
                )
            self._recorder.open(session, task, task if group is None else group)
            self._sessions[session] = self._session(session)
        key = secrets.token_urlsafe(24)
        self._keys[_digest(key)] = session
        return {"session_id": session, "api_key": key, "path": f"/s/{session}/v1"}

    def reward(self, session: str, reward: float, turn: int | None = None) -> None:
        """Set the reward of a turn of a session; `turn=None` means its last turn.

        Raises:
            NotFoundError: the session does not exist.
            InvalidInputError: the session has no such turn, or the reward is not a finite number.
        """
        with self._recorder.lock:
            self._recorder.reward(self._known(session).recorded, reward, turn)

    def close(
        self,
        session: str,
        *,
        reward: float | None = None,
        success: bool | None = None,
        status: str = "finished",
        info: Json | None = None,
    ) -> None:
        """End a session and set its outcome; later requests of the session are refused.

        Raises:
            NotFoundError: the session does not exist.
            InvalidInputError: the session is closed already, or a field cannot be stored; the message names the field.
        """
        with self._recorder.lock:
            recorded = self._known(session).recorded
            if recorded.closed is not None:
                raise InvalidInputError(f"session {session!r} is closed already; open another one")
            END["status"](status, "status")
            if not recorded.turns:
                status = "aborted"  # there is nothing to train
            end: Json = {"reward": reward, "success": success, "status": status, "info": info}
            self._recorder.close(recorded, end)

    def commit(self) -> Batch | None:
        """Commit all groups whose sessions are closed as the next iteration; return the batch, None without any.

        A session that cannot be stored in a batch is left out, logged and kept in `excluded`; the others are committed.
        """
        with self._recorder.lock:
            batch = self._recorder.commit()
            self._sessions = {name: self._sessions[name] for name in self._recorder.sessions}
            self._keys = {digest: name for digest, name in self._keys.items() if name in self._sessions}
        return batch

    def excluded(self) -> list[Json]:
        """Return the closed sessions that no batch could hold: names, `reason`, `closed`, and turns in form `openenv`.

        Example:
            >>> from agentrl_core.agents import Endpoint, VllmUpstream
            >>> Endpoint(VllmUpstream("http://127.0.0.1:8000")).excluded()
            []
        """
        return [
            {"reason": exclusion.reason, "closed": exclusion.recorded.closed, "group": exclusion.recorded.group}
            | traces.export_session(exclusion.recorded, "openenv")
            for exclusion in self._recorder.excluded
        ]

    @contextmanager
    def running(self, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Serve in a separate thread inside the block; yields the URL. Port 0 selects a free port."""
        with serving(self.app, host, port) as url:
            yield url

    def _session(self, name: str) -> Session:
        return Session(self._recorder.sessions[name], self._recorder, self.upstream, self._template)

    def _known(self, session: str) -> Session:
        if session not in self._sessions:
            raise NotFoundError(f"there is no session {session[:160]!r}; open it first")
        return self._sessions[session]

    @asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self.upstream.close()

    def _all_routes(self) -> list[Route]:
        return [
            *self.routes(),
            Route("/health", self._reporting_errors(self._health, "chat")),
            Route("/sessions", self.guarded(self._open), methods=["POST"]),
            Route("/sessions/{session}/reward", self.guarded(self._reward), methods=["POST"]),
            Route("/sessions/{session}/close", self.guarded(self._close), methods=["POST"]),
            Route("/sessions/{session}/traces", self.guarded(self._traces)),
            Route("/weights", self.guarded(self._weights), methods=["POST"]),
            Route("/iterations", self.guarded(self._commit), methods=["POST"]),
            Route("/excluded", self.guarded(self._excluded)),
        ]

    def session_of(self, request: Request) -> str:
        """Return the name of a request's session, from its path, its header or its key; see `Routes.session_of`."""
        key = key_of(request)
        owner = self._keys.get(_digest(key))
        if owner is None and self._api_key is not None and not _same(key, self._api_key):
            raise PermissionError
        name = request.path_params.get("session") or request.headers.get("x-session-id") or owner
        if owner is not None and name != owner:
            raise PermissionError
        if name is None and self._api_key is None and key and NAME.match(key):
            name = key
        if name is None:
            raise InvalidInputError(
                "the request names no session; use the base URL .../s/NAME/v1, the header X-Session-ID, or the key "
                "that POST /sessions gave"
            )
        return str(name)

    def conversation(self, session: str, *, begins: bool) -> Session:
        """Return the handler of a session; see `Routes.conversation`. The first request opens an unknown session."""
        if session not in self._sessions:
            if not begins:
                recorded = SessionRecord(session, session, session, 0)
                return Session(recorded, self._recorder, self.upstream, self._template)
            self.open(session)
        return self._sessions[session]

    def check_sender(self, request: Request) -> None:
        """Refuse requests from web pages if the endpoint has no key; see `Routes.check_sender`."""
        if self._api_key is None:
            check_origin(request)

    def check_key(self, request: Request) -> None:
        """Require the endpoint's key, if it has one; see `Routes.check_key`."""
        if self._api_key is not None and not _same(key_of(request), self._api_key):
            raise PermissionError

    @property
    def image_refusal(self) -> str | None:
        """Why images are refused: the upstream does not have `takes_images = True`; None: they are accepted."""
        if getattr(self.upstream, "takes_images", False):
            return None
        return (
            f"which {type(self.upstream).__name__} does not take here; send texts, or serve an engine with "
            "takes_images = True"
        )

    async def models(self) -> Json:
        """Return the upstream's reply of `/v1/models`."""
        return await self.upstream.models()

    async def ready(self) -> None:
        """Check the upstream once, before its first answer."""
        if self._checked is None or (self._checked.done() and self._checked.exception() is not None):
            self._checked = asyncio.ensure_future(self.upstream.check())
        await asyncio.shield(self._checked)

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "sessions": len(self._sessions), "iteration": self._recorder.iteration})

    async def _open(self, request: Request) -> Response:
        body = await self.body(request)
        _OPEN(body)
        opened = self.open(body.get("session_id"), task=body.get("task_id"), group=body.get("group"))
        return JSONResponse(opened | {"base_url": str(request.base_url).rstrip("/") + opened["path"]})

    async def _reward(self, request: Request) -> Response:
        body = await self.body(request)
        _REWARD(body)
        self.reward(request.path_params["session"], body["reward"], body.get("turn"))
        return JSONResponse({"status": "ok"})

    async def _close(self, request: Request) -> Response:
        body = await self.body(request)
        _CLOSE(body)
        end_fields = {name: body[name] for name in END if body.get(name) is not None}
        self.close(request.path_params["session"], **end_fields)
        return JSONResponse({"status": "ok"})

    async def _traces(self, request: Request) -> Response:
        recorded = self._known(request.path_params["session"]).recorded
        shape = request.query_params.get("shape", "openenv")
        if shape == "arrow":
            stream = traces.arrow(self._recorder.batch([recorded]))
            return Response(stream, media_type="application/vnd.apache.arrow.stream")
        return JSONResponse(traces.export_session(recorded, shape))

    async def _weights(self, request: Request) -> Response:
        body = await self.body(request)
        _WEIGHTS(body)
        if body["version"] < self.policy_version:
            raise InvalidInputError(f"version is {body['version']}; give at least {self.policy_version}")
        self.policy_version = body["version"]
        return JSONResponse({"version": self.policy_version})

    async def _commit(self, request: Request) -> Response:
        await self.body(request)
        before = len(self._recorder.excluded)
        batch = self.commit()
        names = [exclusion.recorded.session for exclusion in self._recorder.excluded[before:]]
        # The list is cut, since clients limit the length of headers; GET /excluded has all.
        headers = {"X-Excluded-Sessions": ", ".join(names[:LISTED])} if names else {}
        if batch is None:
            return Response(status_code=204, headers=headers)
        return Response(traces.arrow(batch), headers=headers, media_type="application/vnd.apache.arrow.stream")

    async def _excluded(self, _: Request) -> Response:
        return JSONResponse({"sessions": self.excluded()})


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _same(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode(), second.encode())
