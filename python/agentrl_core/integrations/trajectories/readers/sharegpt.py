"""ShareGPT: `conversations` of objects with `from` and `value`, as in LLaMA-Factory, axolotl and Hermes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_core.engine.chat_messages import from_json
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord, refuse
from agentrl_core.integrations.trajectories.readers.messages import (
    HiddenReasoning,
    Message,
    call_of,
    text_of,
)

_LISTS = ("conversations", "conversation")
_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "function_call"), "assistant"),
    "system": "system",
    "developer": "developer",
    **dict.fromkeys(("tool", "function", "observation", "function_response", "tool_response"), "tool"),
}
_NAMES, _TEXTS = ("from", "role"), ("value", "content", "text")
_MEDIA = ("images", "image", "videos", "video", "audios", "audio")
_PREFERENCES = ("chosen", "rejected", "kto_tag")
_PARTIAL = ("mask", "train_detail", "training_detail")
_TOOLS_SHOWN = "<tools>"


def recognised(value: object) -> bool:
    """Return whether a record has ShareGPT conversations."""
    return isinstance(value, Mapping) and any(isinstance(value.get(name), list) for name in _LISTS)


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:  # noqa: ARG001 -- texts hide none
    """Yield a chat for each record."""
    for record in records:
        yield _chat(record.mapping(), record.where)


def _chat(row: Mapping[str, Any], where: str) -> Message:
    name = next((name for name in _LISTS if isinstance(row.get(name), list)), None)
    if name is None:
        raise InvalidInputError(f"{where} has no list 'conversations'; give one, of objects with 'from' and 'value'")
    for key in (*_MEDIA, *_PREFERENCES):
        if row.get(key) not in (None, "", [], True):
            what = "a preference" if key in _PREFERENCES else "media"
            refuse(where, f"it has {what} ({key!r}), which a chat of texts cannot hold", "leave the record out")
    if row.get("label") is False:
        refuse(where, "its label is false, an answer that is not wanted", "leave the record out, or the label")
    messages = [_message(item, f"{where}, message {number}") for number, item in enumerate(row[name])]
    system = row.get("system") or row.get("system_prompt")
    if system:
        messages = _with_system(messages, text_of(system, f"{where}, system"), where)
    tools = from_json(row.get("tools") or row.get("functions") or [])
    known_keys = (name, "system", "system_prompt", "tools", "functions", *_MEDIA)
    chat = {**{key: value for key, value in row.items() if key not in known_keys}, "messages": messages}
    if tools:
        is_described = any(_TOOLS_SHOWN in message["content"] for message in messages if message["role"] == "system")
        # A template would describe again what the system message of Hermes describes.
        chat["described_tools" if is_described else "tools"] = tools
    return chat


def _with_system(messages: list[Message], system: str, where: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        if messages[0]["content"] != system:
            refuse(where, "it has a system prompt and another one among its messages", "remove one of them")
        return messages
    return [{"role": "system", "content": system}, *messages]


def _message(item: object, where: str) -> Message:
    if not isinstance(item, Mapping):
        raise InvalidInputError(f"{where} is {item!r:.60}; give an object with 'from' and 'value'")
    sender = next((item[name] for name in _NAMES if item.get(name) is not None), None)
    role = _ROLES.get(str(sender).lower())
    if role is None:
        raise InvalidInputError(f"{where}: 'from' is {sender!r:.40}; give one of {', '.join(sorted(_ROLES))}")
    if partial := next((name for name in _PARTIAL if item.get(name) is not None), None):
        refuse(where, f"it has {partial!r}, a mask of parts of a message", "split the message, or give 'weight' 0 or 1")
    keys = [name for name in _TEXTS if name in item]
    if not keys:
        raise InvalidInputError(f"{where} has no 'value' ({item!r:.60}); give its text")
    content = item[keys[0]]
    known = (*_NAMES, keys[0], "loss")
    message = {"role": role, **{name: value for name, value in item.items() if name not in known}}
    if item.get("loss") is not None:
        if role != "assistant" and item["loss"]:
            refuse(where, "it is not an answer and has loss", "set its loss to false")
        message["weight"] = item["loss"]
    if str(sender).lower() != "function_call":
        return {**message, "content": text_of(content, where)}
    calls = from_json(content)
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, Mapping) for call in calls):
        raise InvalidInputError(
            f'{where}: a function_call is {content!r:.60}; give JSON, {{"name": .., "arguments": ..}}'
        )
    return {
        **message,
        "content": "",
        "tool_calls": [
            call_of(call.get("id"), call.get("name"), call.get("arguments", call.get("parameters")), where)
            for call in calls
        ],
    }
