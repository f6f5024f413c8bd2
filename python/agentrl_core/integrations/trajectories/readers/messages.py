"""Functions shared by the readers: parts of messages, untrained answers, and hidden reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import refuse

Message = dict[str, Any]

HiddenReasoning = Literal["refuse", "mask", "omit"]
"""Treatment of an answer whose reasoning is not in the file; see `read`."""

UNTRAINED = "untrained"
"""The key of a chat for the reasons why answers are not trained."""

RECORD = "record"
"""The key of a chat for the original record, separate from the chat's own keys."""

_TEXT_TYPES = ("text", "input_text", "output_text")


def text_of(content: object, where: str) -> str:
    """Return a content as one text, with its parts joined by newlines.

    Raises:
        InvalidInputError: the content is neither text nor a list of parts.
        UnsupportedError: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        raise InvalidInputError(f"{where}: content is {content!r:.60}; give a text or a list of parts")
    texts = []
    for place, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise InvalidInputError(f"{where}: content[{place}] is {part!r:.60}; give a text, or an object with 'type'")
        kind = part.get("type", "text" if "text" in part else None)
        if kind not in _TEXT_TYPES:
            refuse(where, f"it holds a part of type {kind!r}, which is not text", "remove the part or the session")
        texts.append(part.get("text") or "")
    return "\n".join(texts)


def call_of(identity: object, name: object, arguments: object, where: str) -> Message:
    """Return a tool call in the form of chats.

    Raises:
        InvalidInputError: the tool has no name.
    """
    if not isinstance(name, str) or not name:
        call = f"the tool call {identity!r:.40}" if identity else "a tool call"
        raise InvalidInputError(f"{where}: {call} has the name {name!r:.40}; give the tool's name")
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    return {**({"id": identity} if identity else {}), "type": "function", "function": function}


def result_of(identity: object, content: str, name: object = None) -> Message:
    """Return a tool's reply as a chat message."""
    return {
        "role": "tool",
        **({"tool_call_id": identity} if identity else {}),
        **({"name": name} if name else {}),
        "content": content,
    }


def tool_schema(name: object, description: object, parameters: object) -> Message:
    """Return the schema of a tool in the form of chats."""
    function = {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}}
    return {"type": "function", "function": function}


def mask(message: Message, reasons: list[str], why: str) -> None:
    """Mark an answer as untrained context, and add the reason."""
    message["weight"] = 0
    reasons.append(why)


def hidden(message: Message, reasons: list[str], where: str, policy: HiddenReasoning, why: str) -> None:
    """Apply the `hidden_reasoning` policy of `read` to an answer without its reasoning.

    Raises:
        UnsupportedError: the policy is `refuse`.
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
    """Return a chat without empty fields, and with the reasons why answers are not trained.

    Raises:
        InvalidInputError: the chat has no message.
    """
    if not chat["messages"]:
        raise InvalidInputError(f"{where} has no message; leave it out")
    fields = {name: value for name, value in chat.items() if value is not None and not (name == "tools" and not value)}
    return {**fields, UNTRAINED: list(reasons)} if reasons else fields


def has_answer(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether one of the messages is an assistant's answer."""
    return any(message.get("role") == "assistant" for message in messages)


def is_messages(value: object) -> bool:
    """Return whether a value is a list of messages with roles."""
    return isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)


def odd_message(value: object, name: str) -> str:
    """Return `name[2] is ...` for an error: the first entry that is not a message with a role, or all of `value`."""
    entries = value if isinstance(value, list) else ()
    odd = next((at for at, each in enumerate(entries) if not isinstance(each, Mapping) or "role" not in each), None)
    return f"{name} is {value!r:.60}" if odd is None else f"{name}[{odd}] is {entries[odd]!r:.60}"
