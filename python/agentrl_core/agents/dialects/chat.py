"""OpenAI's `/v1/chat/completions`, which is also the upstream's API."""

from __future__ import annotations

import time
from collections.abc import Iterator

from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.request_fields import Flag, List, Number, Object, Text, either, whole
from agentrl_core.agents.upstream import ChatResponse

_OURS = ("stream", "stream_options", "model", "user", "store", "metadata", "kv_transfer_params", "return_token_ids")
"""Fields that are not sent to the upstream: they concern only the client and this endpoint."""

TEXT, NAME, FLAG, OBJECT = Text(), Text(least=1), Flag(), Object()

SAMPLING = {
    "temperature": Number(0, 2),
    "top_p": Number(0, 1, above=True),
    "top_k": whole(-1),
    "min_p": Number(0, 1),
    "seed": whole(-(2**63), 2**63 - 1),
    "chat_template_kwargs": OBJECT,
}
"""Rules of the sampling fields of several dialects."""

OPENAI = SAMPLING | {
    "model": TEXT,
    "user": TEXT,
    "n": whole(1, 128),
    "max_tokens": whole(1),
    "min_tokens": whole(0),
    "stop": either(NAME, List(NAME)),
    "stop_token_ids": List(whole(0)),
    "presence_penalty": Number(-2, 2),
    "frequency_penalty": Number(-2, 2),
    "repetition_penalty": Number(0, 2, above=True),
    "logit_bias": OBJECT,
    "ignore_eos": FLAG,
    "skip_special_tokens": FLAG,
    "stream": FLAG,
    "stream_options": Object({"include_usage": FLAG}),
    "response_format": Object({"type": NAME, "json_schema": OBJECT}, required=("type",)),
}
"""Rules of the fields that chat completions and completions have in common."""

PART = Object(
    {"type": NAME, "text": TEXT, "image_url": either(TEXT, Object({"url": TEXT})), "refusal": TEXT}, required=("type",)
)
CONTENT = either(TEXT, List(either(TEXT, PART)))
CALL = Object(
    {"id": TEXT, "type": TEXT, "function": Object({"name": TEXT, "arguments": either(TEXT, OBJECT)})},
    required=("function",),
)
MESSAGE = Object(
    {
        "role": NAME,
        "content": CONTENT,
        "name": TEXT,
        "tool_call_id": TEXT,
        "tool_calls": List(CALL),
        "reasoning": TEXT,
        "reasoning_content": TEXT,
        "refusal": TEXT,
    },
    required=("role",),
)
FUNCTION = Object({"name": NAME, "description": TEXT, "parameters": OBJECT, "strict": FLAG}, required=("name",))
FIELDS = Object(
    OPENAI
    | {
        "messages": List(MESSAGE, least=1),
        "tools": List(Object({"type": TEXT, "function": FUNCTION}, required=("function",))),
        "tool_choice": either(TEXT, Object({"type": TEXT, "function": Object({"name": NAME}, required=("name",))})),
        "parallel_tool_calls": FLAG,
        "max_completion_tokens": whole(1),
        "logprobs": FLAG,
        "top_logprobs": whole(-1),
        "reasoning_effort": TEXT,
        "include_reasoning": FLAG,
        "add_generation_prompt": FLAG,
        "continue_final_message": FLAG,
        "metadata": OBJECT,
        "store": FLAG,
    },
    required=("messages",),
)
"""Rule of a body. Fields without a rule are passed on, and the upstream checks them."""

Event = tuple[str | None, Json | None]
"""Name and data of a server-sent event; without data it is the end of an OpenAI stream."""


def parse_request(body: Json) -> Json:
    """Convert a body to a request to the upstream's `/v1/chat/completions`."""
    return {name: value for name, value in body.items() if name not in _OURS and value is not None}


def reply(answer: ChatResponse, body: Json, name: str) -> Json:
    """Convert an answer to the client's reply, a `chat.completion`."""
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
    """Yield a reply as server-sent events, `chat.completion.chunk` objects."""
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
