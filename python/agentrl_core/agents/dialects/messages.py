"""Anthropic's `/v1/messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrl_core.agents.dialects.chat import CONTENT, FLAG, NAME, OBJECT, SAMPLING, TEXT, Event
from agentrl_core.agents.history_digest import Json, text_of
from agentrl_core.agents.request_fields import List, Object, Text, either, whole
from agentrl_core.agents.upstream import ChatResponse
from agentrl_core.exceptions import InvalidInputError

_SAME = ("temperature", "top_p", "top_k", "seed", "chat_template_kwargs")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

_BLOCK = Object(
    {
        "type": NAME,
        "text": TEXT,
        "id": TEXT,
        "name": TEXT,
        "input": OBJECT,
        "tool_use_id": TEXT,
        "content": CONTENT,
        "source": Object({"type": TEXT, "url": TEXT, "media_type": TEXT, "data": TEXT}),
    },
    required=("type",),
)
_CONTENT = either(TEXT, List(_BLOCK))
_MESSAGE = Object(
    {"role": Text(among=("user", "assistant", "system")), "content": _CONTENT}, required=("role", "content")
)
FIELDS = Object(
    SAMPLING
    | {
        "model": TEXT,
        "messages": List(_MESSAGE, least=1),
        "system": _CONTENT,
        "max_tokens": whole(1),
        "stop_sequences": List(NAME),
        "stream": FLAG,
        "tools": List(
            Object({"type": TEXT, "name": NAME, "description": TEXT, "input_schema": OBJECT}, required=("name",))
        ),
        "tool_choice": Object({"type": NAME, "name": TEXT}, required=("type",)),
        "metadata": OBJECT,
        "thinking": OBJECT,
    },
    required=("messages",),
)
"""Rule of a body."""


def parse_request(body: Json) -> Json:
    """Convert a body to a request to the upstream's `/v1/chat/completions`."""
    request: Json = {name: body[name] for name in _SAME if body.get(name) is not None}
    if body.get("max_tokens") is not None:
        request["max_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        request["stop"] = body["stop_sequences"]
    chat: list[Json] = []
    system_field = body.get("system")
    # Texts of a system prompt are joined without a separator, as in vLLM; the template joins those of a message.
    texts = [text_of([part]) for part in system_field] if isinstance(system_field, list) else [text_of(system_field)]
    if None in texts:
        if isinstance(system_field, list):
            place = texts.index(None)
            raise InvalidInputError(
                f'system[{place}] is {system_field[place]!r:.60}; give {{"type": "text", "text": ...}}, or a text as '
                "system"
            )
        raise InvalidInputError(f"system is {system_field!r:.60}; give a text, or a list of text parts")
    system = "".join(text for text in texts if text)
    if system:
        chat.append({"role": "system", "content": system})
    for place, message in enumerate(body["messages"]):
        try:
            chat += _from_client(message)
        except InvalidInputError as error:
            raise InvalidInputError(f"messages[{place}]: {error}") from None
    request["messages"] = chat
    if body.get("tools"):
        request["tools"] = [_tool(tool) for tool in body["tools"]]
        choice = body.get("tool_choice") or {"type": "auto"}
        request["tool_choice"] = (
            {"type": "function", "function": {"name": choice.get("name")}}
            if choice.get("type") == "tool"
            else _CHOICES.get(str(choice.get("type")), "auto")
        )
    return request


def reply(answer: ChatResponse, body: Json, name: str) -> Json:
    """Convert an answer to the client's reply, an Anthropic `message`."""
    choice = answer.choices[0]
    message = choice.message
    blocks: list[Json] = []
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning:
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": name})
    if message.get("content"):
        blocks.append({"type": "text", "text": message["content"]})
    blocks += [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": _object(call["function"].get("arguments")),
        }
        for call in message.get("tool_calls") or []
    ]
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", ""),
        "content": blocks or [{"type": "text", "text": ""}],
        "stop_reason": _STOPS.get(choice.finish_reason, "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": answer.usage.get("prompt_tokens", len(answer.prompt)),
            "output_tokens": answer.usage.get("completion_tokens", len(choice.tokens)),
        },
    }


def events(reply: Json, body: Json) -> Iterator[Event]:  # noqa: ARG001 -- all dialects take both
    """Yield a reply as server-sent events of Anthropic's API."""
    start = reply | {"content": [], "stop_reason": None}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(reply["content"]):
        begin, delta = _pieces(block)
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": begin}
        yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        if block["type"] == "thinking":
            signature = {"type": "signature_delta", "signature": block["signature"]}
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": signature}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": ended, "usage": reply["usage"]}
    yield "message_stop", {"type": "message_stop"}


def _pieces(block: Json) -> tuple[Json, Json]:
    if block["type"] == "tool_use":
        text = json.dumps(block["input"])
        return block | {"input": {}}, {"type": "input_json_delta", "partial_json": text}
    if block["type"] == "thinking":
        begin = {"type": "thinking", "thinking": "", "signature": ""}
        return begin, {"type": "thinking_delta", "thinking": block["thinking"]}
    return {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}


def _from_client(message: Json) -> list[Json]:
    """Convert an Anthropic message to chat messages; each tool result becomes its own message."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    chat_messages: list[Json] = []
    parts: list[Json] = []
    calls: list[Json] = []
    for place, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            result = _result(block.get("content"))
            chat_messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result})
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {})
            function = {"name": block.get("name"), "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "text":
            parts.append({"type": "text", "text": block.get("text", "")})
        elif kind == "image":
            parts.append(_image(block))
        elif kind not in ("thinking", "redacted_thinking"):
            raise InvalidInputError(
                f"content[{place}] has type {kind!r:.40}; send text, image, tool_use or tool_result"
            )
    if parts or calls or not chat_messages:
        chat_message: Json = {
            "role": role,
            "content": text_of(parts) if len(parts) < 2 and text_of(parts) is not None else parts,
        }
        if calls:
            chat_message["tool_calls"] = calls
        chat_messages.append(chat_message)
    return chat_messages


def _result(content: Any) -> str | list[Json]:
    """Return the content of a tool's result as a text, or as texts and images."""
    text = text_of(content)
    if text is not None:
        return text
    parts: list[Json] = []
    for part in content:
        text = text_of([part])
        if text is None and part.get("type") != "image":
            raise InvalidInputError(
                f'a part of a tool_result is {part!r:.60}; give {{"type": "text", "text": ...}} or a part of type image'
            )
        parts.append(_image(part) if text is None else {"type": "text", "text": text})
    return parts


def _image(block: Json) -> Json:
    source: Any = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if kind not in ("base64", "url"):
        raise InvalidInputError(f"the source of an image has type {kind!r:.40}; give base64, or url with a data: URL")
    url = source.get("url") if kind == "url" else f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": str(url)}}


def _tool(tool: Json) -> Json:
    schema = tool.get("input_schema") or {"type": "object", "properties": {}}
    function = {"name": tool.get("name"), "description": tool.get("description") or "", "parameters": schema}
    return {"type": "function", "function": function}


def _object(arguments: Any) -> Json:
    """Return the arguments of a call as an object, which Anthropic's API requires."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
