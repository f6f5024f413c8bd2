"""Routes of an endpoint inside a collector: each request of an agent goes to the loop that plays its episode."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from agentrl_core.agents.answer_messages import for_template, parse_message
from agentrl_core.agents.conversations import SessionConversations
from agentrl_core.agents.history_digest import HistoryDigests, Json, digests, text_of
from agentrl_core.agents.request_deduplication import IsGone, RequestDeduplicator
from agentrl_core.agents.routes import Routes, key_of, serving
from agentrl_core.agents.upstream import ChatResponse, ResponseChoice
from agentrl_core.engine.chat import Chat
from agentrl_core.engine.chat_renderer import checked_options
from agentrl_core.env.image import images_in, is_content
from agentrl_core.exceptions import InvalidInputError, NotFoundError, UnsupportedError

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
except ImportError as error:
    from agentrl_core.exceptions import MissingDependencyError

    raise MissingDependencyError(
        "env.Agents needs Starlette and uvicorn: pip install 'agentrl-core[agents]'"
    ) from error

_OVER = "the episode of this agent is over, so the request is not answered; end the agent"
_NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@dataclass(frozen=True)
class ModelCall:
    """A request of an agent to the model, whose `answer` the agent waits for.

    Attributes:
        conversation: number of the conversation.
        replaces_history: whether the messages are the whole context; otherwise they follow the last answer.
        messages: messages in the form that templates expect.
        tools: schemas of the tools.
        state: digest of the whole history.
        max_tokens: most tokens of an answer; None: the limit of the training loop.
        options: options of the chat template; None: none.
        answer: future of the text that the model generates.
        loop: event loop of the endpoint.
    """

    conversation: int
    replaces_history: bool
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    state: str
    max_tokens: int | None
    options: Mapping[str, Any] | None = None
    answer: Future[str] = field(default_factory=Future)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)


class InProcessSession:
    """The session of one agent, whose requests are offered to the loop that plays its episode.

    Args:
        offer: receives each call, in the endpoint's thread.
        tokenizer: parses the model's output; None: the whole output is the message's content.
        template: renders the session's chats; None if there is no tokenizer.
        options: options of the chat template.
    """

    def __init__(
        self,
        offer: Callable[[ModelCall], None],
        tokenizer: Any,
        template: Chat | None,
        options: Mapping[str, Any],
    ) -> None:
        self.histories: dict[str, list[Json]] = {}
        self._offer = offer
        self._tokenizer = tokenizer
        self._template = template
        self._options = dict(options)
        self._given: dict[str, ChatResponse] = {}
        """The last answer to each request, by its digest."""
        self._repeats = RequestDeduplicator(lambda key, _: self._given.get(key))
        self._lanes = SessionConversations()
        self._chats = HistoryDigests()
        self._waiting: set[Future[str]] = set()
        self._over = False

    async def chat(self, request: Json, version: int, *, key: str, retry: bool, is_gone: IsGone) -> ChatResponse:
        """Return the model's answer to a chat; see `routes.SessionHandler`."""
        del version
        if self._over:
            raise InvalidInputError(_OVER)
        return await self._repeats.once(key, request, lambda: self._answer(request, key), is_gone, retry=retry)

    async def complete(self, request: Json, version: int, *, key: str, retry: bool, is_gone: IsGone) -> ChatResponse:
        """Return the model's continuation of a prompt, a conversation of one turn; see `routes.SessionHandler`."""
        del version
        if self._over:
            raise InvalidInputError(_OVER)
        return await self._repeats.once(key, request, lambda: self._continue(request, key), is_gone, retry=retry)

    async def count(self, request: Json) -> int:
        """Count the tokens of a chat as the template renders it; see `routes.SessionHandler`."""
        if self._tokenizer is None:
            raise InvalidInputError("tokenizer is None, so tokens cannot be counted; make env.Agents(tokenizer=...)")
        if self._template is not None and images_in(request["messages"]):
            chat = self._template.with_options(request.get("chat_template_kwargs"))
            try:
                return len(chat.conversation(request["messages"], request.get("tools")))
            except UnsupportedError as error:
                raise InvalidInputError(f"messages: {error}") from error
        try:
            tokens = self._tokenizer.apply_chat_template(
                [_with_content(message) for message in request["messages"]],
                tools=request.get("tools") or None,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **(request.get("chat_template_kwargs") or {}),
            )
        except Exception as error:
            # Messages that the template refuses are the client's error.
            raise InvalidInputError(f"messages are refused by the chat template ({error}); correct them") from error
        return len(tokens)

    def end(self) -> None:
        """End the session: waiting and later requests fail."""
        self._over = True
        for waiting in list(self._waiting):
            with suppress(InvalidStateError):
                waiting.set_exception(InvalidInputError(_OVER))

    async def _answer(self, request: Json, key: str) -> ChatResponse:
        messages, tools = request["messages"], request.get("tools") or None
        options = {**self._options, **checked_options(request.get("chat_template_kwargs"))} or None
        for message in messages:  # the client may have sent them under other indices, or as items of `input`
            content = message.get("content")
            if text_of(content) is None and not is_content(for_template(message).get("content")):
                raise InvalidInputError(
                    f"messages: the content of a message is {content!r:.60}; send a text, or a list of texts and images"
                )
            if message.get("role") == "prompt":
                raise InvalidInputError(
                    f"messages: the role of the message with content {content!r:.60} is 'prompt'; send text that needs "
                    "no chat template to /v1/completions"
                )
        max_tokens, count, stops = _options(request)
        chain = self._chats.digests(messages, [tools, options])
        place = self._lanes.begin(chain)
        # Every further choice begins its own conversation, with the whole history.
        others = [self._lanes.another(chain[0]) for _ in range(1, count)]
        history = [_with_content(message) for message in messages]
        following = history if place.last_answer is None else history[place.last_answer + 1 :]
        calls = [
            ModelCall(place.conversation, place.last_answer is None, following, tools, chain[-1], max_tokens, options)
        ]
        calls += [
            replace(calls[0], conversation=lane, replaces_history=True, messages=history, answer=Future())
            for lane in others
        ]
        texts = await self._answer_texts(calls)
        chat = None if self._template is None else self._template.with_options(options)
        opening = "" if chat is None else chat.decode(chat.prompt("agentrl question"))
        form = None if chat is None else chat.answer_form()
        choices = []
        for call, text in zip(calls, texts, strict=True):
            message = parse_message(self._tokenizer, text, opening, form=form, tools=tools or ())
            _cut(message, stops)
            self._lanes.end(call.conversation, digests([*messages, message | {"role": "assistant"}], None, chain)[-1])
            choices.append(ResponseChoice(message, [], [], "tool_calls" if message.get("tool_calls") else "stop"))
        answer = self._given[key] = ChatResponse([], choices, dict(_NO_USAGE))
        return answer

    async def _continue(self, request: Json, key: str) -> ChatResponse:
        max_tokens, count, stops = _options(request)
        message = self._raw(request["prompt"])
        state = digests([message], ["completions", message.get("tokens")])[-1]
        lanes = [self._lanes.another(state) for _ in range(count)]
        calls = [
            ModelCall(lane, replaces_history=True, messages=[message], tools=None, state=state, max_tokens=max_tokens)
            for lane in lanes
        ]
        choices = []
        for call, text in zip(calls, await self._answer_texts(calls), strict=True):
            self._lanes.end(call.conversation, "")
            reply: Json = {"content": text}
            _cut(reply, stops)
            choices.append(ResponseChoice(reply, [], [], "stop"))
        answer = self._given[key] = ChatResponse([], choices, dict(_NO_USAGE))
        return answer

    def _raw(self, prompt: str | list[int]) -> Json:
        """Return a prompt as a message with role `prompt`, which is not rendered by a template."""
        if isinstance(prompt, str):
            return {"role": "prompt", "content": prompt}
        if self._tokenizer is None:
            raise InvalidInputError(
                "prompt is a list of token ids, but tokenizer is None; send a text, or make env.Agents(tokenizer=...)"
            )
        for place, token in enumerate(prompt):
            if isinstance(token, bool) or not 0 <= token < len(self._tokenizer):
                raise InvalidInputError(
                    f"prompt[{place}] is {token}; give token ids from 0 to {len(self._tokenizer) - 1}, or a text"
                )
        return {"role": "prompt", "content": "", "tokens": prompt}

    async def _answer_texts(self, calls: Sequence[ModelCall]) -> list[str]:
        """Offer calls together, and return the model's answers."""
        self._waiting.update(call.answer for call in calls)
        if self._over:
            self.end()
        for call in [] if self._over else calls:
            self._offer(call)
        try:
            return await asyncio.gather(*(asyncio.wrap_future(call.answer) for call in calls))
        except BaseException:
            for call in calls:
                self._lanes.give_up(call.conversation)
            raise
        finally:
            self._waiting.difference_update(call.answer for call in calls)


class InProcessEndpoint(Routes):
    """Endpoint on the loopback address for agents inside a collector, started with the first agent.

    Args:
        tokenizer: see `InProcessSession`.
        options: options of the chat template.
        max_bytes: most bytes of a request's body.

    Attributes:
        call: the class of a program's requests, `ModelCall`.
    """

    call: ClassVar = ModelCall

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None, max_bytes: int = 32 << 20) -> None:
        super().__init__(max_bytes)
        self._options = checked_options(options)
        has_template = getattr(tokenizer, "chat_template", None) is not None
        self._template = Chat(tokenizer, self._options) if has_template else None
        # A processor has its tokenizer inside.
        self._tokenizer = tokenizer if self._template is None else self._template.tokenizer
        self._sessions: dict[str, tuple[str, InProcessSession]] = {}
        self._lock = threading.Lock()
        self._serving = ExitStack()
        self._url = ""
        self._process = 0

    def session_of(self, request: Request) -> str:
        """Return the session in a request's path after checking its key; see `Routes.session_of`."""
        name = str(request.path_params.get("session", ""))
        key, _ = self._known(name)
        if not hmac.compare_digest(key_of(request).encode(), key.encode()):
            raise PermissionError
        return name

    def conversation(self, session: str, *, begins: bool) -> InProcessSession:
        """Return the open session of an episode."""
        del begins
        _, handler = self._known(session)
        return handler

    def check_key(self, request: Request) -> None:
        """Require the key of the request's session; see `Routes.check_key`."""
        self.session_of(request)

    @property
    def image_refusal(self) -> str | None:
        """Why images are refused: the chat template shows none; None: accepted, subject to the collector's checks."""
        if self._template is None:
            return (
                "which env.Agents takes only with the processor of a model that takes images; send texts, or give such "
                "a processor as tokenizer="
            )
        if not self._template.shows_images():
            return (
                "which the chat template of env.Agents(tokenizer=...) does not show; send texts, or give a tokenizer "
                "whose template shows images"
            )
        return None

    async def models(self) -> Json:
        """Return `policy` as the only model of `/v1/models`."""
        return {"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "agentrl"}]}

    def open(self, offer: Callable[[ModelCall], None]) -> tuple[str, str, str, InProcessSession]:
        """Begin a session, and start the endpoint if needed; return the session's name, base URL, key and handler."""
        with self._lock:
            if not self._url or self._process != os.getpid():  # a forked child has none of its parent's threads
                app = Starlette(routes=self.routes())
                self._url, self._process = self._serving.enter_context(serving(app)), os.getpid()
        name, key, handler = secrets.token_hex(8), secrets.token_urlsafe(24), self._new_session(offer)
        self._sessions[name] = key, handler
        return name, f"{self._url}/s/{name}/v1", key, handler

    def _known(self, name: str) -> tuple[str, InProcessSession]:
        if name not in self._sessions:
            raise NotFoundError(f"session {name!r:.60} does not exist or is over; use the base URL that run is given")
        return self._sessions[name]

    def _new_session(self, offer: Callable[[ModelCall], None]) -> InProcessSession:
        return InProcessSession(offer, self._tokenizer, self._template, self._options)

    def close_session(self, name: str) -> None:
        """End a session; a second time does nothing."""
        _, handler = self._sessions.pop(name, ("", None))
        if handler is not None:
            handler.end()

    def close(self) -> None:
        """End all sessions and the endpoint, which starts again with the next agent."""
        for name in list(self._sessions):
            self.close_session(name)
        with self._lock:
            self._url = ""
            self._serving.close()


def _with_content(message: Mapping[str, Any]) -> Json:
    """Return a message in a collector's form, with an empty content if it has neither content nor calls."""
    converted = for_template(message)
    if converted.get("content") is None and not converted.get("tool_calls"):
        converted["content"] = ""
    return converted


def _options(request: Json) -> tuple[int | None, int, list[str]]:
    """Return a request's token limit, number of choices and stop texts."""
    stops = request.get("stop") or []
    max_tokens = request.get("max_completion_tokens") or request.get("max_tokens")
    return max_tokens, request.get("n", 1), [stops] if isinstance(stops, str) else stops


def _cut(message: Json, stops: Sequence[str]) -> None:
    """Cut the reply before the first stop text; the sampled tokens stay in the context."""
    content = message.get("content") or ""
    ends = [content.index(stop) for stop in stops if stop in content]
    if ends:
        message["content"] = content[: min(ends)]
