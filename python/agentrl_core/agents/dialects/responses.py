"""OpenAI's `/v1/responses`: a client sends the whole history, or names the response that it continues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from agentrl_core.agents.dialects.chat import CONTENT, FLAG, NAME, OBJECT, SAMPLING, TEXT, Event
from agentrl_core.agents.history_digest import Json, text_of
from agentrl_core.agents.request_fields import List, Object, either, whole
from agentrl_core.agents.upstream import ChatResponse
from agentrl_core.exceptions import InvalidInputError

_SAME = ("temperature", "top_p", "parallel_tool_calls", "seed", "top_k", "chat_template_kwargs")

_ITEM = Object(
    {
        "type": NAME,
        "role": NAME,
        "content": CONTENT,
        "name": TEXT,
        "arguments": TEXT,
        "call_id": TEXT,
        "output": CONTENT,
    }
)
_TOOL = Object({"type": NAME, "name": NAME, "description": TEXT, "parameters": OBJECT, "strict": FLAG}, ("type",))
_FORMAT = Object({"type": NAME, "name": TEXT, "schema": OBJECT, "strict": FLAG, "description": TEXT}, ("type",))
FIELDS = Object(
    SAMPLING
    | {
        "model": TEXT,
        "input": either(NAME, List(_ITEM)),
        "instructions": TEXT,
        "previous_response_id": NAME,
        "max_output_tokens": whole(1),
        "tools": List(_TOOL),
        "tool_choice": either(TEXT, Object({"type": TEXT, "name": TEXT})),
        "parallel_tool_calls": FLAG,
        "text": Object({"format": _FORMAT}),
        "stream": FLAG,
        "stream_options": OBJECT,
        "metadata": OBJECT,
        "reasoning": OBJECT,
        "store": FLAG,
    }
)
"""Rule of a body."""


def parse_request(body: Json) -> Json:
    """Convert a body to a request to the upstream's `/v1/chat/completions`."""
    request: Json = {name: body[name] for name in _SAME if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        request["max_tokens"] = body["max_output_tokens"]
    chat: list[Json] = []
    if body.get("instructions"):
        chat.append({"role": "system", "content": body["instructions"]})
    input_field = body.get("input")
    items = [{"role": "user", "content": input_field}] if isinstance(input_field, str) else input_field
    if not items:
        raise InvalidInputError("input is missing or empty; give a text or a list of items")
    for place, item in enumerate(items):
        try:
            _add(chat, item)
        except InvalidInputError as error:
            raise InvalidInputError(f"input[{place}]: {error}") from None
    request["messages"] = chat
    if body.get("tools"):
        request["tools"] = [_tool(tool, place) for place, tool in enumerate(body["tools"])]
        choice = body.get("tool_choice") or "auto"
        if isinstance(choice, dict) and choice.get("name"):
            choice = {"type": "function", "function": {"name": choice["name"]}}
        request["tool_choice"] = choice
    form = (body.get("text") or {}).get("format") or {"type": "text"}
    if form.get("type") == "json_schema":
        schema = {name: form[name] for name in ("name", "schema", "strict", "description") if name in form}
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") == "json_object":
        request["response_format"] = form
    return request


def reply(answer: ChatResponse, body: Json, name: str) -> Json:
    """Convert an answer to the client's reply, a `response` object."""
    choice = answer.choices[0]
    message = choice.message
    is_cut = choice.finish_reason == "length"
    status = "incomplete" if is_cut else "completed"
    output: list[Json] = []
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning:
        text = {"type": "reasoning_text", "text": reasoning}
        output.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": [text], "status": status})
    if message.get("content") or not message.get("tool_calls"):
        text = {"type": "output_text", "text": message.get("content") or "", "annotations": [], "logprobs": []}
        output.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": [text]}
        )
    for place, call in enumerate(message.get("tool_calls") or []):
        output.append(
            {
                "type": "function_call",
                "id": f"fc_{name}_{place}",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"].get("arguments") or "{}",
                "status": "completed",
            }
        )
    fields = {
        name: body.get(name)
        for name in ("instructions", "metadata", "previous_response_id", "temperature", "top_p", "max_output_tokens")
    }
    input_tokens, output_tokens = answer.usage.get("prompt_tokens", len(answer.prompt)), len(choice.tokens)
    return fields | {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "model": body.get("model", ""),
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input_tokens + output_tokens,
        },
    }


def events(reply: Json, body: Json) -> Iterator[Event]:  # noqa: ARG001 -- all dialects take both
    """Yield a reply as server-sent events of OpenAI's Responses API."""
    number = 0

    def event(kind: str, **data: Any) -> Event:
        nonlocal number
        number += 1
        return kind, {"type": kind, "sequence_number": number - 1, **data}

    in_progress = reply | {"status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=in_progress)
    yield event("response.in_progress", response=in_progress)
    for index, item in enumerate(reply["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty = item | {"status": "in_progress"}
        if item["type"] == "function_call":
            yield event("response.output_item.added", output_index=index, item=empty | {"arguments": ""})
            yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            call = {"name": item["name"], "arguments": item["arguments"]}
            yield event("response.function_call_arguments.done", **place, **call)
        else:
            yield event("response.output_item.added", output_index=index, item=empty | {"content": []})
            part = item["content"][0]
            kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
            place["content_index"] = 0
            logprobs_field: Json = {} if item["type"] == "reasoning" else {"logprobs": []}
            yield event("response.content_part.added", **place, part=part | {"text": ""})
            yield event(f"response.{kind}.delta", **place, delta=part["text"], **logprobs_field)
            yield event(f"response.{kind}.done", **place, text=part["text"], **logprobs_field)
            yield event("response.content_part.done", **place, part=part)
        yield event("response.output_item.done", output_index=index, item=item)
    kind = "response.incomplete" if reply["status"] == "incomplete" else "response.completed"
    yield event(kind, response=reply)


def history(body: Json, reply: Json) -> list[Json]:
    """Return the items of a request and of its reply; a later `previous_response_id` refers to them."""
    input_field = body["input"]
    items = [{"role": "user", "content": input_field}] if isinstance(input_field, str) else list(input_field)
    return [*items, *reply["output"]]


def _add(chat: list[Json], item: Json) -> None:
    """Append an item to a chat; a call becomes a part of an assistant's message directly before it."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        content: Any = item.get("content")
        if role is None:
            raise InvalidInputError("the message has no role; give user, assistant, system or developer")
        text = text_of(content) if not isinstance(content, list) or len(content) < 2 else None
        parts = [_part(part) for part in content] if text is None else text
        chat.append({"role": "system" if role == "developer" else role, "content": parts})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if not chat or chat[-1]["role"] != "assistant":
            chat.append({"role": "assistant", "content": ""})
        chat[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = item.get("output")
        text = text_of(output)
        result: Any = [_part(part) for part in output] if text is None and isinstance(output, list) else text
        chat.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": result})
    elif kind != "reasoning":
        raise InvalidInputError(
            f"the item has type {kind!r:.40}; send message, reasoning, function_call or function_call_output"
        )


def _part(part: str | Json) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    text = part.get("text", part.get("refusal"))
    if text is None:
        raise InvalidInputError(
            f'a content part is {part!r:.60}; send {{"type": "input_text", "text": ...}} or a part of type input_image'
        )
    return {"type": "text", "text": text}


def _tool(tool: Json, place: int) -> Json:
    if tool.get("type") != "function":
        raise InvalidInputError(f"tools[{place}] has type {tool.get('type')!r:.40}; send tools of type function alone")
    function = {
        name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None
    }
    return {"type": "function", "function": function}
