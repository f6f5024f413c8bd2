"""An engine of this process in place of a server: for scripts, tests, and loops that train on recorded sessions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl_core import _core
from agentrl_core.agents.answer_messages import parse_message
from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.upstream import ChatResponse, RefusedError, ResponseChoice
from agentrl_core.engine.base import Engine, Request, Sampling
from agentrl_core.env.image import images_in
from agentrl_core.exceptions import AgentRLError, InvalidInputError

_OPENING = 64
"""Number of last prompt tokens that contain the template's opening of the answer."""


class EngineUpstream:
    """Upstream that generates with an `Engine`, its tokenizer's chat template, and the tokenizer's answer parser.

    The parser is the tokenizer's `response_template` (Hugging Face). Without one, reasoning and calls are parsed in the
    form in which the chat template renders them. Tools that the chat template does not render are described in the
    system message, and their calls are parsed in the form described there.

    A message whose content or call the template leaves out is refused with status 400. `chat_template_kwargs` of a
    request are options of the template.

    Images (base64 `data:` URLs) become the template's placeholders; the engine must have `takes_images = True`.

    Args:
        engine: the engine that generates.
        seed: sampling seed for requests without one.
        max_tokens: most tokens of an answer, for requests that set no limit.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> from agentrl_core.agents import Endpoint, EngineUpstream
        >>> _, tokenizer = warm_start.build(env.ReasoningGym(["lcm"]), seed=0)
        >>> endpoint = Endpoint(EngineUpstream(engine.Scripted(tokenizer, ["42"])))
    """

    def __init__(self, engine: Engine, *, seed: int = 0, max_tokens: int = 256) -> None:
        self._engine = engine
        self._tokenizer: Any = engine.chat.tokenizer
        self._seed = seed
        self._max_tokens = max_tokens
        self._numbers = itertools.count()
        self.takes_images: bool = getattr(engine, "takes_images", False)
        """Whether requests may have images; see `engine.Request`."""

    async def check(self) -> None:
        """Do nothing: engines report processed log-probs, or refuse to start."""

    async def tokenize(
        self, messages: Sequence[Json], tools: Sequence[Json] | None, options: Json | None, *, open_turn: bool
    ) -> list[int]:
        """Return the tokens of a chat, rendered by the engine's template; see `Upstream.tokenize`."""
        try:
            chat = self._engine.chat.with_options(options)
            return [int(token) for token in chat.conversation(messages, tools, open_turn=open_turn)]
        except AgentRLError as error:  # a chat that the template refuses, or shows in part, is the client's error
            raise RefusedError(400, {"error": {"message": str(error)}}) from error

    async def chat(self, request: Json, tokens: Sequence[int] | None) -> ChatResponse:
        """Generate the answer to a chat; see `Upstream.chat`."""
        tools, options = request.get("tools"), request.get("chat_template_kwargs")
        if tokens is None:
            tokens = await self.tokenize(request["messages"], tools, options, open_turn=True)
        return await self._generated(request, list(tokens), is_chat=True)

    async def complete(self, request: Json) -> ChatResponse:
        """Generate the continuation of a prompt; see `Upstream.complete`."""
        prompt = request["prompt"]
        tokens = self._tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        if max(tokens, default=-1) >= len(self._tokenizer):
            wrong = max(tokens)
            most = len(self._tokenizer) - 1
            message = f"prompt[{tokens.index(wrong)}] is {wrong}; give token ids from 0 to {most}, or a text"
            raise RefusedError(400, {"error": {"message": message}})
        return await self._generated(request, list(tokens), is_chat=False)

    async def models(self) -> Json:
        """Return the tokenizer's name as the only model of `/v1/models`."""
        name = str(self._tokenizer.name_or_path or "model")
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "agentrl"}]}

    async def close(self) -> None:
        """Do nothing: the engine's owner closes it."""

    async def _generated(self, request: Json, tokens: list[int], *, is_chat: bool) -> ChatResponse:
        number = next(self._numbers)
        seed = request.get("seed")
        stops = self._engine.chat.stop_token_ids
        images = images_in(request["messages"]) if is_chat else ()
        try:
            sampling = Sampling(
                temperature=float(request.get("temperature", 1.0)),
                top_p=float(request.get("top_p", 1.0)),
                top_k=int(request.get("top_k", 0)),
                max_tokens=int(request.get("max_completion_tokens") or request.get("max_tokens") or self._max_tokens),
                stop_token_ids=stops,
            )
            requests = [
                Request(
                    np.asarray(tokens, np.int32),
                    _core.rng.structural_seed(self._seed, *((number, place) if seed is None else (int(seed), place))),
                    sampling,
                    images=images,
                )
                for place in range(int(request.get("n", 1)))
            ]
        except (InvalidInputError, TypeError, ValueError) as error:
            raise RefusedError(400, {"error": {"message": str(error)}}) from error
        segments = await asyncio.gather(*map(self._engine.generate, requests))
        chat = self._engine.chat.with_options(request.get("chat_template_kwargs"))
        choices, opening = [], self._tokenizer.decode(tokens[-_OPENING:])
        for segment in segments:
            text = chat.decode(segment.tokens)
            message: Json = {"content": text}
            if is_chat:
                form, tools = chat.answer_form(), request.get("tools") or ()
                message = parse_message(self._tokenizer, text, opening, form=form, tools=tools)
            reason = "tool_calls" if message.get("tool_calls") else segment.finish_reason
            choices.append(ResponseChoice(message, segment.tokens.tolist(), segment.logprobs.tolist(), reason))
        sampled = sum(len(segment.tokens) for segment in segments)
        usage = {"prompt_tokens": len(tokens), "completion_tokens": sampled, "total_tokens": len(tokens) + sampled}
        return ChatResponse(tokens, choices, usage)
