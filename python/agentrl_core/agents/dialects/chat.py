"""OpenAI's `/v1/chat/completions`, which is also what the upstream speaks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.upstream import Answer
from agentrl_core.exceptions import InvalidInputError

_OURS = ("stream", "stream_options", "model", "user", "store", "metadata", "kv_transfer_params", "return_token_ids")
"""Fields that are the client's and this endpoint's own business."""

Event = tuple[str | None, Json | None]
"""Name and data of a server-sent event; no data: the end of a stream of OpenAI's."""


def asked(body: Json) -> Json:
    """The request to the upstream."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise InvalidInputError("messages is missing or no list of messages; give at least one")
    return {name: value for name, value in body.items() if name not in _OURS and value is not None}


def reply(answer: Answer, body: Json, name: str) -> Json:
    """The client's reply."""
    choices = [
        {
            "index": place,
            "message": {"role": "assistant", **choice.message},
            "finish_reason": choice.finish_reason,
            "logprobs": choice.details,
        }
        for place, choice in enumerate(answer.choices)
    ]
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model", ""),
        "choices": choices,
        "usage": answer.usage,
    }


def events(reply: Json, body: Json) -> Iterator[Event]:
    """The reply as a stream."""
    head = {name: reply[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def chunk(index: int, delta: Json, reason: str | None = None, details: Json | None = None) -> Event:
        choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": details}
        return None, head | {"choices": [choice]}

    for choice in reply["choices"]:
        index, message = choice["index"], choice["message"]
        yield chunk(index, {"role": "assistant", "content": ""})
        for field in ("reasoning", "reasoning_content"):
            if message.get(field):
                yield chunk(index, {field: message[field]})
        if message.get("content"):
            yield chunk(index, {"content": message["content"]}, details=choice["logprobs"])
        for place, call in enumerate(message.get("tool_calls") or []):
            yield chunk(index, {"tool_calls": [{"index": place, **call}]})
        yield chunk(index, {}, choice["finish_reason"])
    if (body.get("stream_options") or {}).get("include_usage"):
        yield None, head | {"choices": [], "usage": reply["usage"]}
    yield None, None
