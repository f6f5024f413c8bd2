"""The interface between an endpoint and a generator of answers, and its implementation for vLLM servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.request_fields import parsed, shown
from agentrl_core.exceptions import EngineError, InvalidInputError

CLOSE_TO_ZERO = 1e-3
"""Tolerance for the log-probability of a token that is sampled with certainty, for rounding."""


@dataclass(frozen=True)
class ResponseChoice:
    """One choice of an answer: the message for the client, and the sampled tokens.

    Args:
        message: an assistant's message of `/v1/chat/completions`; for `/v1/completions` its `content` is the text.
        tokens: ids of all sampled tokens, including the stop token.
        logprobs: log-prob of each token in the distribution that it was sampled from; NaN if the engine reported none.
        finish_reason: as in `/v1/chat/completions`.
        details: `logprobs` in the client's format, if it requested them.
    """

    message: Json
    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    details: Json | None = None


@dataclass(frozen=True)
class ChatResponse:
    """The answer to one request: the prompt tokens that the engine read, and one or several choices."""

    prompt: list[int]
    choices: list[ResponseChoice]
    usage: Json = field(default_factory=dict)


class RefusedError(EngineError):
    """The upstream refused a request because of an error of the client.

    Args:
        status: HTTP status of the reply.
        body: body of the upstream's reply.
    """

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(f"the upstream refuses the request with status {status}: {str(body)[:500]}")
        self.status = status
        self.body = body

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.body)


class Upstream(Protocol):
    """Interface of generators of answers. Requests are those of OpenAI's API; several may run at once."""

    async def check(self) -> None:
        """Check, before the first request, that reported log-probs can be trained on.

        Raises:
            EngineError: the upstream cannot be reached, or its log-probs are not those of the sampling distribution.
        """
        ...

    async def tokenize(
        self, messages: Sequence[Json], tools: Sequence[Json] | None, options: Json | None, *, open_turn: bool
    ) -> list[int]:
        """Return the tokens of a chat, with `open_turn` up to the assistant's turn; `options` are template options."""
        ...

    async def chat(self, request: Json, tokens: Sequence[int] | None) -> ChatResponse:
        """Generate the answer to a chat; `tokens` replace the prompt that the template would render."""
        ...

    async def complete(self, request: Json) -> ChatResponse:
        """Generate the answer to a request to `/v1/completions`."""
        ...

    async def models(self) -> Json:
        """Return the reply of `/v1/models`."""
        ...

    async def close(self) -> None:
        """Release the upstream's resources, such as connections."""
        ...


class VllmUpstream:
    """Upstream that is a vLLM server, started with `vllm serve MODEL --logprobs-mode processed_logprobs`.

    For tools, also give the server vLLM's options for tool calls. No tokenizer, template or parser is needed here: the
    server has them. Prompt tokens are sent in the field `kv_transfer_params.prompt_token_ids` of
    `/v1/chat/completions` (vLLM 0.32), which skips template and tokenizer but still parses the answer. The server's
    `prompt_token_ids` show the tokens that it read.

    Args:
        url: URL of the server, such as `http://127.0.0.1:8000`.
        model: name of the model on the server; None: the first of `/v1/models`.
        api_key: key of the server, if it requires one.
        seconds: most seconds of one request.
        client: an `httpx.AsyncClient` to use; None: a new one.

    Raises:
        InvalidInputError: the URL is not an HTTP URL.

    Example:
        >>> from agentrl_core.agents import Endpoint, VllmUpstream
        >>> endpoint = Endpoint(VllmUpstream("http://127.0.0.1:8000", model="policy"))
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        seconds: float = 600.0,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInputError(f"VllmUpstream: url is {url!r}; give one such as http://127.0.0.1:8000")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._client = client or httpx.AsyncClient(timeout=seconds, limits=limits)
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = headers
        self._model = model
        self._shows_tools: bool | None = None

    async def check(self) -> None:
        """Check that the log-prob of a token sampled with certainty is 0, as for processed log-probs."""
        request = {"prompt": [0], "max_tokens": 1, "top_k": 1, "temperature": 1.0, "logprobs": 0}
        answer = await self.complete(request)
        logprob = answer.choices[0].logprobs[0]
        if not abs(logprob) < CLOSE_TO_ZERO:
            raise EngineError(
                f"the server at {self._url} reports log-prob {logprob:.4f} of a token that was sampled with certainty, "
                "so its log-probs are not those of the distribution sampled from; start the server with "
                "--logprobs-mode processed_logprobs"
            )

    async def tokenize(
        self, messages: Sequence[Json], tools: Sequence[Json] | None, options: Json | None, *, open_turn: bool
    ) -> list[int]:
        """Return the tokens of a chat from the server's `/tokenize`; see `Upstream.tokenize`."""
        body: Json = {"messages": list(messages), "add_generation_prompt": open_turn}
        if tools:
            body["tools"] = list(tools)
        if options:
            body["chat_template_kwargs"] = options
        reply = await self._post("/tokenize", body)
        with self._reading("/tokenize"):
            return [int(token) for token in reply["tokens"]]

    async def chat(self, request: Json, tokens: Sequence[int] | None) -> ChatResponse:
        """Request the answer to a chat from the server; see `Upstream.chat`."""
        if request.get("tools"):
            await self._check_tools(request["tools"], request.get("chat_template_kwargs"))
        body = request | {"stream": False, "logprobs": True, "return_token_ids": True}
        body.pop("stream_options", None)
        if tokens is not None:
            body["kv_transfer_params"] = {"prompt_token_ids": list(tokens)}
        reply = await self._post("/v1/chat/completions", body)
        with self._reading("/v1/chat/completions"):
            choices = [self._choice(request, choice) for choice in reply["choices"]]
            sampled, reported = sum(len(choice.tokens) for choice in choices), reply["usage"]["completion_tokens"]
            answer = ChatResponse([int(token) for token in reply["prompt_token_ids"]], choices, dict(reply["usage"]))
        if sampled != reported:
            raise EngineError(
                f"the server at {self._url} returned {sampled} token ids, but reports {reported} sampled tokens; start "
                "it with vLLM 0.32 or newer"
            )
        return answer

    async def complete(self, request: Json) -> ChatResponse:
        """Request the continuation of a prompt from the server; see `Upstream.complete`."""
        body = request | {"stream": False, "return_token_ids": True, "logprobs": request.get("logprobs") or 0}
        reply = await self._post("/v1/completions", body)
        choices = []
        with self._reading("/v1/completions"):
            for choice in reply["choices"]:
                logprobs = choice["logprobs"]["token_logprobs"]
                tokens = [int(token) for token in choice["token_ids"]]
                details = choice["logprobs"] if request.get("logprobs") is not None else None
                choices.append(
                    ResponseChoice(
                        {"content": str(choice["text"])},
                        tokens,
                        _aligned(logprobs, tokens),
                        str(choice["finish_reason"]),
                        details,
                    )
                )
            prompt = [int(token) for token in reply["choices"][0]["prompt_token_ids"]]
            return ChatResponse(prompt, choices, dict(reply.get("usage") or {}))

    async def models(self) -> Json:
        """Return the server's reply of `/v1/models`."""
        return await self._get("/v1/models")

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._client.aclose()

    def _choice(self, request: Json, choice: Json) -> ResponseChoice:
        tokens = [int(token) for token in choice["token_ids"]]
        content = (choice.get("logprobs") or {}).get("content") or []
        message = {name: value for name, value in choice["message"].items() if value is not None and value != []}
        message.setdefault("content", None)
        reason = str(choice["finish_reason"])
        return ResponseChoice(
            message,
            tokens,
            _aligned([place.get("logprob") for place in content], tokens),
            reason,
            choice.get("logprobs") if request.get("logprobs") else None,
        )

    async def _check_tools(self, tools: Sequence[Json], options: Json | None) -> None:
        """Refuse tools if the server's chat template does not render them; checked once."""
        if self._shows_tools is None:
            question: list[Json] = [{"role": "user", "content": "agentrl question"}]
            try:
                prompts = [await self.tokenize(question, each, options, open_turn=True) for each in (tools, None)]
            except RefusedError:  # the template refuses the test question
                prompts = [[0], [1]]
            self._shows_tools = prompts[0] != prompts[1]
        if not self._shows_tools:
            message = (
                f"the chat template of the server at {self._url} shows no tools; describe them in a message, or start "
                "the server with a template that shows tools (--chat-template)"
            )
            raise RefusedError(400, {"error": {"message": message}})

    async def _named(self) -> str:
        if self._model is None:
            models = await self.models()
            with self._reading("/v1/models"):
                self._model = str(models["data"][0]["id"])
        return self._model

    async def _post(self, path: str, body: Json) -> Json:
        body = body | {"model": await self._named()}
        return await self._reply("POST", path, json=body)

    async def _get(self, path: str) -> Json:
        return await self._reply("GET", path)

    async def _reply(self, method: str, path: str, **options: Any) -> Json:
        try:
            response = await self._client.request(method, self._url + path, headers=self._headers, **options)
        except httpx.HTTPError as error:
            raise EngineError(
                f"the server at {self._url} does not answer {path} ({str(error) or type(error).__name__}); check "
                "that it is running"
            ) from error
        try:
            reply = parsed(response.content, f"the reply of {path}")
        except InvalidInputError as error:
            if response.status_code == 200:
                raise EngineError(
                    f"the server at {self._url} answers {path} with {shown(response.text)}, not JSON; give the address "
                    "of a vLLM server"
                ) from error
            reply = {"error": {"message": response.text[:500]}}
        if 400 <= response.status_code < 500 and isinstance(reply, dict):
            raise RefusedError(response.status_code, reply)
        if response.status_code != 200:
            raise EngineError(
                f"the server at {self._url} answers {path} with status {response.status_code}: {reply}; check its log"
            )
        if not isinstance(reply, dict):
            raise EngineError(
                f"the server at {self._url} answers {path} with {shown(reply)}, not a JSON object; give the address of "
                "a vLLM server"
            )
        return reply

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        """Raise an `EngineError` if a reply lacks a field, or if the field has the wrong type."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise EngineError(
                f"the server at {self._url} answers {path} in a form unlike vLLM's ({type(error).__name__}: {error}); "
                "send the request again, or start the server with vLLM 0.32 or newer"
            ) from error


def _aligned(logprobs: Sequence[float | None], tokens: Sequence[int]) -> list[float]:
    """Return a log-prob for each token: NaN for an invalid one, and for all if the lengths differ."""
    if len(logprobs) != len(tokens):
        return [math.nan] * len(tokens)
    # The engine's rounding can put the log-prob of a certain token above 0.
    return [
        math.nan if value is None or value < -9e3 or value > CLOSE_TO_ZERO else min(value, 0.0) for value in logprobs
    ]
