"""Logs of Inspect: `.json`, and `.eval`, which is a zip of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord, refuse
from agentrl_core.integrations.trajectories.readers.messages import (
    RECORD,
    UNTRAINED,
    HiddenReasoning,
    Message,
    call_of,
    hidden,
    mask,
    text_of,
    tool_schema,
)
from agentrl_core.integrations.trajectories.readers.model_calls import RecordedCall, chats_of_calls

_ATTACHMENT = "attachment://"
_VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_POOL = "message_pool"
_NOT_KEPT = ("messages", "events", "events_data", _POOL, "call_pool", "attachments", "timelines")
_GIVEN = ("input", "operator")
_CUT = ("max_tokens", "model_length", "content_filter")


def recognised(value: object) -> bool:
    """Return whether a record is an Inspect log, or its header or a sample."""
    if not isinstance(value, Mapping):
        return False
    header = isinstance(value.get("eval"), Mapping) and "version" in value
    return header or ("epoch" in value and "messages" in value and "scores" in value)


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:
    """Yield the chats of each sample; the epochs of one sample form a group.

    A sample is one chat, unless the model calls show that the program compacted or rewrote its history.
    """
    task = ""
    for record in records:
        log = record.mapping()
        if isinstance(log.get("eval"), Mapping):
            task = str(log["eval"].get("task") or "")
            samples = log.get("samples")
            if samples is None and not record.where.endswith("header.json"):
                refuse(record.where, "it is a log without its samples", "read the log with samples, or the .eval file")
            for number, sample in enumerate(samples or ()):
                yield from _chats(sample, task, hidden_reasoning, f"{record.where}, sample {number}")
        else:
            yield from _chats(log, task, hidden_reasoning, record.where)


def _chats(sample: Any, task: str, hidden_reasoning: HiddenReasoning, where: str) -> Iterator[Message]:
    if not isinstance(sample, Mapping) or not isinstance(sample.get("messages"), list):
        known = (
            f": messages is {sample.get('messages')!r:.60}" if isinstance(sample, Mapping) else f" is {sample!r:.60}"
        )
        raise InvalidInputError(f"{where}{known}; give a sample of an Inspect log, with its list of messages")
    sample = _with_attachments(sample, where)
    reasons: list[str] = []
    ends = dict(_ends_of(sample.get("events") or ()))
    messages = [
        _message(message, ends, reasons, hidden_reasoning, f"{where}, message {number}")
        for number, message in enumerate(sample["messages"])
    ]
    name = f"{task}/{sample.get('id')}" if task else str(sample.get("id"))
    facts: Message = {"task": name, RECORD: {key: value for key, value in sample.items() if key not in _NOT_KEPT}}
    scores = list((sample.get("scores") or {}).values())
    value = scores[0].get("value") if len(scores) == 1 and isinstance(scores[0], Mapping) else None
    reward = _VALUES.get(value) if isinstance(value, str) else value
    if isinstance(reward, (int, float)):
        facts["reward"] = float(reward)
        if value in ("C", "I") or isinstance(value, bool):
            facts["success"] = bool(reward)
    calls = _calls(sample, messages, hidden_reasoning, where)
    if calls:
        for chat in chats_of_calls(calls):
            yield {**chat, **facts}
        return
    tools = _tools_of(sample.get("events") or (), where)
    chat = {"messages": messages, **({"tools": tools} if tools else {}), **facts}
    yield {**chat, UNTRAINED: reasons} if reasons else chat


def _calls(
    sample: Mapping[str, Any], messages: Sequence[Message], hidden_reasoning: HiddenReasoning, where: str
) -> list[RecordedCall]:
    """Return the calls that generated a sample's answers, each with its context; empty if the log has none."""
    events = sample.get("events") or ()
    events_by_id = {identity: event for event in _model_events(events) for identity in _outputs_of(event)}
    calls = []
    for number, recorded in enumerate(sample["messages"]):
        if recorded["role"] != "assistant" or recorded.get("source") in _GIVEN:
            continue
        place, event = f"{where}, message {number}", events_by_id.get(recorded.get("id"))
        inputs = [] if event is None else _input_of(event, sample, place)
        if event is None or not inputs:
            if any(isinstance(each, Mapping) and each.get("event") == "compaction" for each in events):
                refuse(
                    place,
                    "the history was compacted, and no event of the log has the input of the call that generated this "
                    "answer, so that what the model read is not in the file",
                    "leave the sample out, or log it with all events",
                )
            return []
        reasons: list[str] = []
        ends = dict(_ends_of([event]))
        context = [_message(each, {}, [], "omit", f"{place}, input {at}") for at, each in enumerate(inputs)]
        _message(recorded, ends, reasons, hidden_reasoning, place)
        calls.append(RecordedCall(place, context, messages[number], _schemas(event.get("tools") or ()), reasons))
    return calls


def _input_of(event: Mapping[str, Any], sample: Mapping[str, Any], where: str) -> list[Any]:
    """Return the messages that a call read, from its event or by ranges of the sample's pool."""
    if event.get("input") or not event.get("input_refs"):
        return list(event.get("input") or ())
    pool = (sample.get("events_data") or {}).get("messages") or sample.get(_POOL) or []
    for place, (begin, end) in enumerate(event["input_refs"]):
        if not 0 <= begin < end <= len(pool):
            raise InvalidInputError(
                f"{where}: input_refs[{place}] is [{begin}, {end}], but the pool of the sample has {len(pool)} "
                "messages; give the whole log"
            )
    return [message for begin, end in event["input_refs"] for message in pool[begin:end]]


def _message(
    recorded: Any,
    ends: Mapping[object, str],
    reasons: list[str],
    hidden_reasoning: HiddenReasoning,
    where: str,
) -> Message:
    if not isinstance(recorded, Mapping) or not isinstance(recorded.get("role"), str):
        known = f": role is {recorded.get('role')!r:.40}" if isinstance(recorded, Mapping) else f" is {recorded!r:.60}"
        raise InvalidInputError(f"{where}{known}; give an object whose role is a text")
    if recorded["role"] != "assistant":
        error = recorded.get("error")
        text = error.get("message") if isinstance(error, Mapping) else None
        message: Message = {"role": recorded["role"], "content": text or text_of(recorded.get("content"), where)}
        if recorded["role"] == "tool":
            message |= {"tool_call_id": recorded.get("tool_call_id"), "name": recorded.get("function")}
        return message
    content = recorded.get("content")
    parts: Sequence[Any] = [{"type": "text", "text": content or ""}] if not isinstance(content, list) else content
    thoughts = [part for part in parts if isinstance(part, Mapping) and part.get("type") == "reasoning"]
    texts = [part for part in parts if not (isinstance(part, Mapping) and part.get("type") == "reasoning")]
    message = {"role": "assistant", "content": text_of(texts, where)}
    calls = recorded.get("tool_calls") or ()
    if calls:
        message["tool_calls"] = [
            call_of(call.get("id"), call.get("function"), call.get("arguments"), where) for call in calls
        ]
    reasonings = [thought.get("reasoning") for thought in thoughts]
    is_hidden = any(thought.get("redacted") for thought in thoughts) or not all(reasonings)
    if thoughts and not is_hidden:
        message["reasoning_content"] = "\n".join(map(str, reasonings))
    if recorded.get("source") in _GIVEN:
        mask(message, reasons, f"{where}: it was given, not generated")
    elif ends.get(recorded.get("id")) in _CUT:
        mask(message, reasons, f"{where}: it was cut by a limit, so that its end was not sampled")
    elif any(call.get("parse_error") for call in calls):
        mask(message, reasons, f"{where}: a call could not be parsed, and is not in the log as it was written")
    elif is_hidden:
        hidden(message, reasons, where, hidden_reasoning, "its reasoning is redacted")
    return message


def _model_events(events: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [each for each in events if isinstance(each, Mapping) and each.get("event") == "model"]


def _ends_of(events: Sequence[Any]) -> Iterator[tuple[object, str]]:
    """Yield the id and the stop reason of each generated message."""
    for event in _model_events(events):
        for choice in (event.get("output") or {}).get("choices") or ():
            yield (choice.get("message") or {}).get("id"), str(choice.get("stop_reason"))


def _outputs_of(event: Mapping[str, Any]) -> list[object]:
    """Return the ids of the messages that a call generated."""
    choices = (event.get("output") or {}).get("choices") or ()
    ids = [(choice.get("message") or {}).get("id") for choice in choices]
    return [identity for identity in ids if identity is not None]


def _tools_of(events: Sequence[Any], where: str) -> list[Message]:
    """Return the tools of the model's calls, which must be equal in all calls that have tools."""
    tools_of_calls = [event["tools"] for event in _model_events(events) if event.get("tools")]
    if any(tools != tools_of_calls[0] for tools in tools_of_calls):
        refuse(where, "the model was given other tools in some turns, and a chat has one list", "leave the sample out")
    return _schemas((tools_of_calls or [()])[0])


def _schemas(tools: Sequence[Any]) -> list[Message]:
    return [tool_schema(tool.get("name"), tool.get("description"), tool.get("parameters")) for tool in tools]


def _with_attachments(sample: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return a sample with its attachments, long texts, put back in place."""
    attachments = sample.get("attachments") or {}
    used = [name for name in ("input", "messages", "output", "events", "events_data", _POOL) if name in sample]
    resolved: dict[str, Any] = {name: _resolved(sample[name], attachments, where) for name in used}
    return {**sample, **resolved}


def _resolved(value: Any, attachments: Mapping[str, str], where: str) -> Any:
    if isinstance(value, str):
        if not value.startswith(_ATTACHMENT):
            return value
        name = value.removeprefix(_ATTACHMENT)
        if name not in attachments:
            raise InvalidInputError(f"{where}: the attachment {name!r:.40} is missing; give the whole log")
        return attachments[name]
    if isinstance(value, Mapping):
        return {key: _resolved(inner, attachments, where) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner, attachments, where) for inner in value]
    return value
