"""Functions that the readers share: parts of messages, answers that are kept and not trained, lost reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import refuse

Message = dict[str, Any]

HiddenReasoning = Literal["refuse", "mask", "omit"]
"""How an answer is treated if the file does not hold its reasoning: see `read`."""

UNTRAINED = "untrained"
"""The key of a chat that lists the answers that are kept and not trained, and why."""

RECORD = "record"
"""The key of a chat that holds the record of the file, apart from the keys of chats, so that no name means both."""

_TEXT_TYPES = ("text", "input_text", "output_text")


def text_of(content: object, where: str) -> str:
    """Return a content as one text: its parts are joined by newlines.

    Raises:
        InvalidInputError: it is neither text nor a list of parts.
        UnsupportedError: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        raise InvalidInputError(f"{where}: content is {content!r:.60}; give a text or a list of parts")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise InvalidInputError(f"{where}: a part is {part!r:.60}; give an object with 'type'")
        kind = part.get("type", "text" if "text" in part else None)
        if kind not in _TEXT_TYPES:
            refuse(where, f"it holds a part of type {kind!r}, which is not text", "remove it, or the whole session")
        texts.append(part.get("text") or "")
    return "\n".join(texts)


def call_of(identity: object, name: object, arguments: object, where: str) -> Message:
    """Return a call of a tool as chats have it.

    Raises:
        InvalidInputError: the tool has no name.
    """
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"{where}: a call of a tool has no name ({name!r:.40}); give one")
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    return {**({"id": identity} if identity else {}), "type": "function", "function": function}


def result_of(identity: object, content: str, name: object = None) -> Message:
    """Return the reply of a tool as chats have it."""
    return {
        "role": "tool",
        **({"tool_call_id": identity} if identity else {}),
        **({"name": name} if name else {}),
        "content": content,
    }


def tool_schema(name: object, description: object, parameters: object) -> Message:
    """Return the schema of a tool as chats have it."""
    function = {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}}
    return {"type": "function", "function": function}


def mask(message: Message, reasons: list[str], why: str) -> None:
    """Keep an answer as context, and note why."""
    message["weight"] = 0
    reasons.append(why)


def hidden(message: Message, reasons: list[str], where: str, policy: HiddenReasoning, why: str) -> None:
    """Treat an answer without its reasoning as the caller of `read` asked.

    Raises:
        UnsupportedError: the policy is to refuse it.
    """
    if policy == "refuse":
        refuse(
            where,
            f"{why}, so that what was sampled is not in the file",
            "read it with hidden_reasoning='mask', which keeps such answers as context, or 'omit', which trains them "
            "without their reasoning",
        )
    if policy == "mask":
        mask(message, reasons, f"{where}: {why}")


def finished(chat: Message, reasons: Sequence[str], where: str) -> Message:
    """Return a chat with the reasons why answers are not trained.

    Raises:
        InvalidInputError: it has no message.
    """
    if not chat["messages"]:
        raise InvalidInputError(f"{where} has no message; leave the file out")
    kept = {name: value for name, value in chat.items() if value is not None and not (name == "tools" and not value)}
    return {**kept, UNTRAINED: list(reasons)} if reasons else kept


def has_answer(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether one of the messages is an answer."""
    return any(message.get("role") == "assistant" for message in messages)


def is_messages(value: object) -> bool:
    """Return whether a value is a list of messages with roles."""
    return isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)
