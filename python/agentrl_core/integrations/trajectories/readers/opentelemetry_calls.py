"""Model calls in OpenTelemetry spans, by the current and earlier conventions for generative AI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_core.engine.chat_messages import from_json
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord, refuse
from agentrl_core.integrations.trajectories.readers.messages import (
    HiddenReasoning,
    Message,
    call_of,
    finished,
    mask,
    result_of,
    text_of,
    tool_schema,
)
from agentrl_core.integrations.trajectories.readers.model_calls import RecordedCall, chats_of_calls
from agentrl_core.integrations.trajectories.readers.opentelemetry_spans import RecordedSpan, is_span, spans_of

_CALLS = ("chat", "generate_content", "text_completion")
_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_SYSTEM, _TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
_FLAT = re.compile(r"(gen_ai\.prompt|gen_ai\.completion|llm\.request\.functions)\.(\d+)\.(.+)")
_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_COMPLETE = ("stop", "tool_call", "tool_calls", "end_turn", "stop_sequence", "function_call", "tool_use")
_NO_CONTENTS = "it is a call of a model without its messages, whose contents were not recorded"
_RECORD = "set OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT (or your tracer's option) and trace again"


def recognised(value: object) -> bool:
    """Return whether a record is a span, but not one of Agent Lightning."""
    return is_span(value) and isinstance(value, Mapping) and "rollout_id" not in value


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:  # noqa: ARG001 -- spans have it or not
    """Yield the chats of each trace; calls that continue a history are joined to one chat."""
    traces: dict[tuple[str, str], list[RecordedSpan]] = {}
    for span in spans_of(records):
        traces.setdefault(span.trace, []).append(span)
    for (trace, _), spans in traces.items():
        calls = [call for span in sorted(spans, key=lambda each: each.start) for call in calls_of(span)]
        for chat in chats_of_calls(calls):
            yield finished({**chat, "task": trace, "trace_id": trace}, chat.pop("untrained", ()), spans[0].where)


def is_call(span: RecordedSpan) -> bool:
    """Return whether a span is a successful model call."""
    operation = span.attributes.get("gen_ai.operation.name")
    if operation is not None:
        return operation in _CALLS and not span.failed
    known = any(_FLAT.match(name) for name in span.attributes) or _INPUT in span.attributes
    return not span.failed and (known or any(_EVENT.match(str(event["name"])) for event in span.events))


def calls_of(span: RecordedSpan) -> list[RecordedCall]:
    """Return the answers of a span, each with its context; empty if the span is not a successful model call.

    Raises:
        UnsupportedError: the contents of the call were not recorded, or are not text.
    """
    if not is_call(span):
        return []
    contents = _current(span) or _flat(span) or _of_events(span)
    if contents is None:
        refuse(span.where, _NO_CONTENTS, _RECORD)
    context, answers = contents
    if not context or not answers:
        refuse(span.where, _NO_CONTENTS, _RECORD)
    tools = _tools(span)
    calls = []
    for answer, end in answers:
        reasons: list[str] = []
        if end and end not in _COMPLETE:
            mask(answer, reasons, f"{span.where}: it ended by {end!r}, so that its end was not sampled")
        calls.append(RecordedCall(span.where, context, answer, tools, reasons))
    return calls


Answers = list[tuple[Message, str]]


def _current(span: RecordedSpan) -> tuple[list[Message], Answers] | None:
    """Return context and answers from the attributes of the current conventions, with messages in parts."""
    if _INPUT not in span.attributes and _OUTPUT not in span.attributes:
        return None
    context: list[Message] = []
    instructions = _structured(span, _SYSTEM)
    if instructions:
        context += _messages({"role": "system", "parts": instructions}, span.where)
    for number, message in enumerate(_structured(span, _INPUT) or ()):
        context += _messages(message, f"{span.where}, {_INPUT}[{number}]")
    answers: Answers = []
    for number, message in enumerate(_structured(span, _OUTPUT) or ()):
        where = f"{span.where}, {_OUTPUT}[{number}]"
        parsed = _messages({**message, "role": message.get("role") or "assistant"}, where)
        if len(parsed) != 1 or parsed[0]["role"] != "assistant":
            refuse(where, "it is not one answer of the assistant", "leave the trace out")
        answers.append((parsed[0], str(message.get("finish_reason") or "")))
    return context, answers


def _structured(span: RecordedSpan, name: str) -> list[Any] | None:
    attribute = span.attributes.get(name)
    value = from_json(attribute)
    if value is None:
        return None
    if not isinstance(value, list):
        raise InvalidInputError(
            f"{span.where}: {name} is {attribute!r:.60}; give a whole JSON list, as OpenTelemetry's GenAI conventions "
            "define it"
        )
    return value


def _messages(value: Any, where: str) -> list[Message]:
    """Return the chat messages of a message in parts; each tool reply becomes its own message."""
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        known = f": role is {value.get('role')!r:.40}" if isinstance(value, Mapping) else f" is {value!r:.60}"
        raise InvalidInputError(f"{where}{known}; give an object with role and parts")
    parts = value.get("parts", value.get("content"))
    parts = [{"type": "text", "content": parts or ""}] if parts is None or isinstance(parts, str) else parts
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    replies: list[Message] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            texts.append(part.get("content", part.get("text")) or "")
        elif kind in ("reasoning", "thinking"):
            thoughts.append(part.get("content") or "")
        elif kind == "tool_call":
            calls.append(call_of(part.get("id"), part.get("name"), part.get("arguments"), where))
        elif kind == "tool_call_response":
            reply = part.get("response", part.get("result"))
            replies.append(result_of(part.get("id"), _reply(reply, where), part.get("name")))
        else:
            refuse(where, f"it holds a part of type {kind!r}, which a chat of texts cannot hold", "leave the trace out")
    if replies:
        questions = [{"role": "user", "content": "\n".join(texts)}] if any(texts) else []
        return [*replies, *questions]
    message: Message = {"role": value["role"], "content": "\n".join(texts)}
    if value.get("name"):
        message["name"] = value["name"]
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _reply(reply: Any, where: str) -> str:
    if isinstance(reply, str) or reply is None:
        return reply or ""
    if not isinstance(reply, list) or not all(isinstance(part, Mapping) and "type" in part for part in reply):
        refuse(where, f"the reply of a tool is {reply!r:.60}", "record the text that the model read")
    return text_of([{**part, "text": part.get("text", part.get("content"))} for part in reply], where)


def _flat(span: RecordedSpan) -> tuple[list[Message], Answers] | None:
    """Return context and answers from numbered attributes, `gen_ai.prompt.0.role`, of OpenLLMetry and AgentOps."""
    prompts, completions = flat_entries(span, "gen_ai.prompt"), flat_entries(span, "gen_ai.completion")
    if not prompts and not completions:
        return None
    context = [message for entry in prompts for message in _old(entry, span.where)]
    answers = [
        (
            _old({**entry, "role": entry.get("role") or "assistant"}, span.where)[0],
            str(entry.get("finish_reason") or ""),
        )
        for entry in completions
    ]
    return context, answers


def flat_entries(span: RecordedSpan, prefix: str) -> list[dict[str, Any]]:
    """Return the numbered attributes with a prefix, as one object for each number."""
    entries: dict[int, dict[str, Any]] = {}
    for name, value in span.attributes.items():
        match = _FLAT.fullmatch(name)
        if match and match[1] == prefix:
            entries.setdefault(int(match[2]), {})[match[3]] = value
    return [entries[number] for number in sorted(entries)]


def _old(entry: Mapping[str, Any], where: str) -> list[Message]:
    """Return the messages of an entry whose calls are numbered keys, or a list."""
    role = entry.get("role")
    if not isinstance(role, str):
        raise InvalidInputError(f"{where}: the role of a message is {role!r:.40} ({dict(entry)!r:.60}); give a text")
    calls = entry.get("tool_calls") or []
    numbered: dict[int, dict[str, Any]] = {}
    for name, value in entry.items():
        parts = name.split(".", 2)
        if parts[0] == "tool_calls" and len(parts) == 3 and parts[1].isdigit():
            numbered.setdefault(int(parts[1]), {})[parts[2].removeprefix("function.")] = value
    calls = [*calls, *(numbered[number] for number in sorted(numbered))]
    content = entry.get("content")
    known = from_json(content)
    is_parts = isinstance(known, list) and known and all(isinstance(part, Mapping) and "type" in part for part in known)
    text = text_of(known if is_parts else content, where)
    if role in ("tool", "function"):
        return [result_of(entry.get("tool_call_id") or entry.get("id"), text, entry.get("name"))]
    message: Message = {"role": role, "content": text}
    thought = entry.get("reasoning") or entry.get("reasoning_content")
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = []
        for call in calls:
            inner = call.get("function") if isinstance(call.get("function"), Mapping) else call
            message["tool_calls"].append(call_of(call.get("id"), inner.get("name"), inner.get("arguments"), where))
    return [message]


def _of_events(span: RecordedSpan) -> tuple[list[Message], Answers] | None:
    """Return context and answers from the events of a span, one message each, of the conventions up to 1.36."""
    context: list[Message] = []
    answers: Answers = []
    for event in span.events:
        match = _EVENT.fullmatch(str(event["name"]))
        body = {**event["attributes"]}
        if match:
            body["tool_calls"] = from_json(body.get("tool_calls")) or []
            context += _old({**body, "role": body.get("role") or match[1]}, span.where)
        elif event["name"] == "gen_ai.choice":
            message = from_json(body.get("message")) or body
            message = {**message, "tool_calls": from_json(message.get("tool_calls")) or []}
            answer = _old({**message, "role": message.get("role") or "assistant"}, span.where)[0]
            answers.append((answer, str(body.get("finish_reason") or "")))
    return (context, answers) if context or answers else None


def _tools(span: RecordedSpan) -> Sequence[Message]:
    tools = _structured(span, _TOOLS) or []
    tools = tools or [
        {**entry, "parameters": from_json(entry.get("parameters"))}
        for entry in flat_entries(span, "llm.request.functions")
    ]
    return [
        dict(tool)
        if isinstance(tool.get("function"), Mapping)
        else tool_schema(tool.get("name"), tool.get("description"), tool.get("parameters"))
        for tool in tools
    ]
