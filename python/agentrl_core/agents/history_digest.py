"""Digests of chat histories, to find out whether a chat continues one that was answered here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentrl_core.env.image import Image

Json = dict[str, Any]


def text_of(content: object) -> str | None:
    """Return the text of a message's content (a text or a list of parts); None if the content has more than text.

    Parts are joined by newlines, as in vLLM.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Sequence):
        texts = [part if isinstance(part, str) else _text_of_part(part) for part in content]
        if all(text is not None for text in texts):
            return "\n".join(str(text) for text in texts)
    return None


def digests(messages: Sequence[Mapping[str, Any]], context: object, known: Sequence[str] = ()) -> list[str]:
    """Return for each message a digest of it and of all messages before it.

    Two chats agree up to a message if and only if its digests are equal. Clients change the answers that they send
    back: they drop reasoning, trim spaces, rename calls, reorder arguments, or split texts into parts. Such changes do
    not affect the digest; every other change does.

    Args:
        messages: messages of a request to `/v1/chat/completions`.
        context: further inputs of the prompt, such as the tools; JSON.
        known: digests of the first messages, if already computed.
    """
    digest = bytes.fromhex(known[-1]) if known else hashlib.sha256(_json(context)).digest()
    hex_digests = list(known)
    answers = (message for message in reversed(messages[: len(known)]) if message.get("role") == "assistant")
    calls = _places(next(answers, {}))
    for message in messages[len(known) :]:
        digested = _digested(message, calls)
        if message.get("role") == "assistant":
            calls = _places(message)
        digest = hashlib.sha256(digest + _json(digested)).digest()
        hex_digests.append(digest.hex())
    return hex_digests


class HistoryDigests:
    """Digests of growing chats, computed only for messages that the previous chat did not have."""

    def __init__(self) -> None:
        self._context: object = None
        self._messages: list[Json] = []
        self._chain: list[str] = []

    def digests(self, messages: list[Json], context: object) -> list[str]:
        """Return the digests of a chat's messages, reusing those of the previous chat; see the function `digests`."""
        same = 0
        if context == self._context:
            pairs = enumerate(zip(self._messages, messages, strict=False))
            same = next((place for place, (old, new) in pairs if old != new), min(len(self._messages), len(messages)))
        chain = digests(messages, context, self._chain[:same])
        self._context, self._messages, self._chain = context, messages, chain
        return chain


def _places(message: Mapping[str, Any]) -> dict[str, int]:
    """Return the index of each call of a message, by the call's id."""
    return {str(call.get("id")): place for place, call in enumerate(message.get("tool_calls") or [])}


def _digested(message: Mapping[str, Any], calls: Mapping[str, int]) -> object:
    """Return the parts of a message that its digest depends on."""
    role, content = message.get("role"), message.get("content")
    text = text_of(content)
    body: object = _content_parts(content) if text is None else text
    if role == "assistant":
        own_calls = [_call(call) for call in message.get("tool_calls") or []]
        return [role, body.strip() if isinstance(body, str) else body, own_calls]
    if role == "tool":
        # Some clients rename calls, so a result is identified by the index of its call.
        return [role, body, calls.get(str(message.get("tool_call_id")), message.get("name"))]
    return ["system" if role == "developer" else role, body, message.get("name")]


def _call(call: Mapping[str, Any]) -> object:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):  # a model's arguments need not be JSON
            arguments = json.loads(arguments)
    return [function.get("name"), arguments]


def _content_parts(content: object) -> object:
    """Return a content with images as texts and image hashes, which do not depend on how an image was sent."""
    if not isinstance(content, Sequence) or not any(isinstance(part, Image) for part in content):
        return content
    texts = [part if isinstance(part, str) else _text_of_part(part) for part in content]
    return [
        ["image", part.sha256.hex()] if isinstance(part, Image) else part if text is None else text
        for part, text in zip(content, texts, strict=True)
    ]


def _text_of_part(part: object) -> str | None:
    if isinstance(part, Mapping) and part.get("type") in ("text", "input_text", "output_text"):
        text = part.get("text")
        return text if isinstance(text, str) else None
    return None


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
