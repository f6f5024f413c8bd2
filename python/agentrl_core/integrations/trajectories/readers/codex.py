"""Rollouts of Codex: a line for each item of the Responses API, with and without an envelope."""

from __future__ import annotations

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
    hidden,
    mask,
    result_of,
    text_of,
)

_ENVELOPES = ("session_meta", "response_item", "turn_context", "compacted", "event_msg", "world_state")
_STATES = ("turn_context", "world_state", "inter_agent_communication_metadata")
_OF_AN_AGENT = {"author", "recipient", "content", "trigger_turn"}
_ITEMS = ("function_call", "function_call_output", "custom_tool_call", "reasoning", "local_shell_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_NOT_READ_BY_THE_MODEL = ("ghost_snapshot",)
_ABSENT = "the tools, which the log does not hold"
_SUMMARISED = "its reasoning is encrypted, and the log has a summary at most"


def recognised(value: object) -> bool:
    """Return whether a line is from a rollout of Codex."""
    if not isinstance(value, Mapping):
        return False
    enveloped = value.get("type") in _ENVELOPES and isinstance(value.get("payload"), Mapping)
    opening = {"id", "timestamp", "instructions"} <= value.keys()
    return enveloped or opening or (value.get("type") in _ITEMS and ("call_id" in value or "summary" in value))


class _Conversation:
    """Messages of a conversation, built item by item."""

    def __init__(self, hidden_reasoning: HiddenReasoning) -> None:
        self.hidden_reasoning: HiddenReasoning = hidden_reasoning
        self.messages: list[Message] = []
        self.reasons: list[str] = []
        self._open: Message | None = None
        self._calls: set[object] = set()

    def add(self, item: Mapping[str, Any], where: str) -> None:
        """Add an item of the model, the user or a tool."""
        kind = item.get("type")
        if kind == "message" and item.get("role") != "assistant":
            self._open = None
            content = text_of(item.get("content"), where)
            self.messages.append({"role": item.get("role"), "content": content})
        elif kind == "message":
            answer = self._answer("content", "tool_calls")
            answer["content"] = text_of(item.get("content"), where)
            if _is_of_an_agent(answer["content"]):
                mask(answer, self.reasons, f"{where}: another agent wrote it")
                self._open = None
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
            self._call(item, where)
        elif kind in _OUTPUTS:
            self._result(item, where)
        elif kind not in _NOT_READ_BY_THE_MODEL:
            refuse(where, f"it is an item of type {kind!r}, which a chat cannot hold", "leave the session out")

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        answer = self._answer("content", "tool_calls", "reasoning_content")
        content = item.get("content")
        texts = [part.get("text", "") for part in content if isinstance(part, Mapping)] if content else []
        if any(texts):
            answer["reasoning_content"] = "\n".join(texts)
        elif "weight" not in answer:
            hidden(answer, self.reasons, where, self.hidden_reasoning, _SUMMARISED)

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        answer = self._answer()
        name: object = item.get("name")
        if item["type"] == "local_shell_call":
            name, arguments = "local_shell", item.get("action")
        else:
            arguments = item.get("input") if item["type"] == "custom_tool_call" else item.get("arguments")
        identity = item.get("call_id") or item.get("id")
        if not identity:
            raise InvalidInputError(
                f"{where}: the call of {name!r:.40} has no call_id; give the call_id of the call's result"
            )
        if item.get("namespace"):
            name = f"{item['namespace']}.{name}"
        self._calls.add(identity)
        answer.setdefault("tool_calls", []).append(call_of(identity, name, arguments, where))

    def _result(self, item: Mapping[str, Any], where: str) -> None:
        identity = item.get("call_id")
        if identity not in self._calls:
            refuse(where, f"it replies to the call {identity!r}, which no earlier line has", "give the whole file")
        output = item.get("output")
        if isinstance(output, Mapping):
            output = output.get("content_items") or output.get("content")
        self._open = None
        self.messages.append(result_of(identity, text_of(output, where)))

    def _answer(self, *occupied: str) -> Message:
        """Return the answer that an item belongs to: the open one, or a new one if later parts exist already."""
        if self._open is None or any(self._open.get(name) for name in occupied):
            self._open = {"role": "assistant", "content": ""}
            self.messages.append(self._open)
        return self._open


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:
    """Yield a chat for the start of a session, and another one after each compaction of its history."""
    conversation = _Conversation(hidden_reasoning)
    identity: object = None
    start = ""
    for record in records:
        entry, where = record.mapping(), record.where
        kind = entry.get("type")
        payload = entry.get("payload")
        start = start or where
        if kind in _ENVELOPES and not isinstance(payload, Mapping):
            raise InvalidInputError(f"{where}: payload of the {kind} is {payload!r:.40}; give an object")
        if kind == "session_meta" or (kind is None and {"id", "timestamp"} <= entry.keys()):
            meta = payload if isinstance(payload, Mapping) else entry
            parent = meta.get("forked_from_id") or (meta.get("id") if identity not in (None, meta.get("id")) else None)
            if parent:
                refuse(
                    where,
                    f"the session begins with a copy of the lines of {parent!r}, and no line shows where the copy "
                    "ends: which answers were sampled here is not known, and those of the copy would be trained twice",
                    "read that session and leave this file out",
                )
            if identity is None:
                identity = meta.get("id")
                _instruct(conversation, meta, where)
        elif kind == "response_item":
            conversation.add(payload or {}, where)
        elif kind == "event_msg":
            if (payload or {}).get("type") == "thread_rolled_back":
                problem = "the history was rolled back, and the log does not mark the items that this removed"
                refuse(where, problem, "leave the session out")
        elif kind == "compacted":
            history = (payload or {}).get("replacement_history")
            if not isinstance(history, list):
                refuse(where, "the history was compacted and the log does not hold the new one", "cut the file there")
            yield _chat(conversation, identity, start)
            conversation, start = _Conversation(hidden_reasoning), where
            _copy(conversation, history, where)
        elif kind not in (*_STATES, None) or (kind is None and "record_type" not in entry):
            conversation.add(entry, where)  # earlier versions write items without an envelope
    yield _chat(conversation, identity, start)


def _is_of_an_agent(text: str) -> bool:
    """Return whether a text is a message between agents, which Codex stores as JSON among the answers."""
    message = from_json(text) if text.startswith("{") else None
    return isinstance(message, Mapping) and message.keys() >= _OF_AN_AGENT


def _copy(conversation: _Conversation, history: Sequence[Any], where: str) -> None:
    """Start a conversation with a copied history, whose answers are not trained."""
    copied = _Conversation("omit")
    for item in history:
        copied.add(item, where)
    conversation.messages = [
        {**message, "weight": 0} if message["role"] == "assistant" else message for message in copied.messages
    ]
    conversation._calls = copied._calls  # noqa: SLF001 -- the same class


def _instruct(conversation: _Conversation, meta: Mapping[str, Any], where: str) -> None:
    instructions = meta.get("base_instructions") or meta.get("instructions")
    text = instructions.get("text") if isinstance(instructions, Mapping) else instructions
    if text:
        conversation.messages.append({"role": "system", "content": text_of(text, where)})


def _chat(conversation: _Conversation, identity: object, where: str) -> Message:
    task = None if identity is None else str(identity)
    chat = {"messages": conversation.messages, "task": task, "session_id": task, "left_out": [_ABSENT]}
    return finished(chat, conversation.reasons, where)
