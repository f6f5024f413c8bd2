"""Logs of Inspect: `.json`, and `.eval`, which is a zip of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord, refuse
from agentrl_core.integrations.trajectories.readers.messages import (
    UNTRAINED,
    HiddenReasoning,
    Message,
    call_of,
    hidden,
    mask,
    text_of,
    tool_schema,
)

_ATTACHMENT = "attachment://"
_VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_NOT_KEPT = ("messages", "events", "events_data", "attachments", "output", "timelines")
_CUT = ("max_tokens", "model_length", "content_filter")


def recognised(value: object) -> bool:
    """Return whether a record is a log, or the header or a sample of one."""
    if not isinstance(value, Mapping):
        return False
    header = isinstance(value.get("eval"), Mapping) and "version" in value
    return header or ("epoch" in value and "messages" in value and "scores" in value)


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:
    """Yield a chat for each sample; the epochs of one sample are a group."""
    task = ""
    for record in records:
        log = record.mapping()
        if isinstance(log.get("eval"), Mapping):
            task = str(log["eval"].get("task") or "")
            samples = log.get("samples")
            if samples is None and not record.where.endswith("header.json"):
                refuse(record.where, "it is a log without its samples", "read the log with samples, or the .eval file")
            for number, sample in enumerate(samples or ()):
                yield _chat(sample, task, hidden_reasoning, f"{record.where}, sample {number}")
        else:
            yield _chat(log, task, hidden_reasoning, record.where)


def _chat(sample: Any, task: str, hidden_reasoning: HiddenReasoning, where: str) -> Message:
    if not isinstance(sample, Mapping) or not isinstance(sample.get("messages"), list):
        raise InvalidInputError(f"{where} has no list 'messages'; a sample of a log is read")
    sample = _with_attachments(sample, where)
    if any(isinstance(event, Mapping) and event.get("event") == "compaction" for event in sample.get("events") or ()):
        refuse(where, "its history was compacted, so that later answers read other messages", "leave the sample out")
    reasons: list[str] = []
    ends = dict(_ends_of(sample.get("events") or ()))
    messages = [
        _message(message, ends, reasons, hidden_reasoning, f"{where}, message {number}")
        for number, message in enumerate(sample["messages"])
    ]
    chat = {name: value for name, value in sample.items() if name not in _NOT_KEPT and value is not None}
    name = f"{task}/{sample.get('id')}" if task else str(sample.get("id"))
    chat |= {"messages": messages, "task": name}
    tools = _tools_of(sample.get("events") or (), where)
    if tools:
        chat["tools"] = tools
    scores = list((sample.get("scores") or {}).values())
    value = scores[0].get("value") if len(scores) == 1 and isinstance(scores[0], Mapping) else None
    reward = _VALUES.get(value) if isinstance(value, str) else value
    if isinstance(reward, (int, float)):
        chat["reward"] = float(reward)
        if value in ("C", "I") or isinstance(value, bool):
            chat["success"] = bool(reward)
    return {**chat, UNTRAINED: reasons} if reasons else chat


def _message(
    given: Any,
    ends: Mapping[object, str],
    reasons: list[str],
    hidden_reasoning: HiddenReasoning,
    where: str,
) -> Message:
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
        raise InvalidInputError(f"{where} is {given!r:.60}; an object with a role is read")
    if given["role"] != "assistant":
        error = given.get("error")
        text = error.get("message") if isinstance(error, Mapping) else None
        message: Message = {"role": given["role"], "content": text or text_of(given.get("content"), where)}
        if given["role"] == "tool":
            message |= {"tool_call_id": given.get("tool_call_id"), "name": given.get("function")}
        return message
    content = given.get("content")
    parts: Sequence[Any] = [{"type": "text", "text": content or ""}] if not isinstance(content, list) else content
    thoughts = [part for part in parts if isinstance(part, Mapping) and part.get("type") == "reasoning"]
    texts = [part for part in parts if not (isinstance(part, Mapping) and part.get("type") == "reasoning")]
    message = {"role": "assistant", "content": text_of(texts, where)}
    calls = given.get("tool_calls") or ()
    if calls:
        message["tool_calls"] = [
            call_of(call.get("id"), call.get("function"), call.get("arguments"), where) for call in calls
        ]
    shown = [thought.get("reasoning") for thought in thoughts]
    lost = any(thought.get("redacted") for thought in thoughts) or not all(shown)
    if thoughts and not lost:
        message["reasoning_content"] = "\n".join(map(str, shown))
    if given.get("source") in ("input", "operator"):
        mask(message, reasons, f"{where}: it was given, not generated")
    elif ends.get(given.get("id")) in _CUT:
        mask(message, reasons, f"{where}: it was cut by a limit, so that its end was not sampled")
    elif any(call.get("parse_error") for call in calls):
        mask(message, reasons, f"{where}: a call could not be parsed, and is not in the log as it was written")
    elif lost:
        hidden(message, reasons, where, hidden_reasoning, "its reasoning is redacted")
    return message


def _model_events(events: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [each for each in events if isinstance(each, Mapping) and each.get("event") == "model"]


def _ends_of(events: Sequence[Any]) -> Iterator[tuple[object, str]]:
    """Return the stop reason of each generated message, by its id."""
    for event in _model_events(events):
        for choice in (event.get("output") or {}).get("choices") or ():
            yield (choice.get("message") or {}).get("id"), str(choice.get("stop_reason"))


def _tools_of(events: Sequence[Any], where: str) -> list[Message]:
    """Return the tools of the calls of the model, which have to be the same in all that have some."""
    found = [event["tools"] for event in _model_events(events) if event.get("tools")]
    if any(tools != found[0] for tools in found):
        refuse(where, "the model was given other tools in some turns, and a chat has one list", "leave the sample out")
    return [
        tool_schema(tool.get("name"), tool.get("description"), tool.get("parameters")) for tool in (found or [()])[0]
    ]


def _with_attachments(sample: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A sample whose long texts are in place again."""
    attachments = sample.get("attachments") or {}
    used = {name: sample.get(name) for name in ("messages", "events")}
    resolved: dict[str, Any] = {name: _resolved(value, attachments, where) for name, value in used.items()}
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
