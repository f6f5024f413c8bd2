"""Whether a chat goes on from one that was answered here: what of its messages counts, as digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentrl_core.env.image import Image

Json = dict[str, Any]


def text_of(content: object) -> str | None:
    """Return the text of a message's content, given as a text or in parts; None where it is more than text.

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
    """A digest for each message, of it and of all before it.

    Two chats agree up to a message iff its digests are equal. Clients change what they send back: they drop the
    reasoning, trim an answer, name its calls anew, write their arguments in another order, give texts in parts. None of
    this is an edit of the history, so it does not count; everything else does.

    Args:
        messages: of a request to `/v1/chat/completions`.
        context: what else the prompt depends on, such as the tools; JSON.
        known: digests of the first messages, where somebody has them.
    """
    digest = bytes.fromhex(known[-1]) if known else hashlib.sha256(_json(context)).digest()
    found = list(known)
    spoken = (message for message in reversed(messages[: len(known)]) if message.get("role") == "assistant")
    calls = _places(next(spoken, {}))
    for message in messages[len(known) :]:
        told = _told(message, calls)
        if message.get("role") == "assistant":
            calls = _places(message)
        digest = hashlib.sha256(digest + _json(told)).digest()
        found.append(digest.hex())
    return found


class HistoryDigests:
    """Digests of chats that go on: those of the messages that the chat before had too are not made again."""

    def __init__(self) -> None:
        self._context: object = None
        self._messages: list[Json] = []
        self._chain: list[str] = []

    def digests(self, messages: list[Json], context: object) -> list[str]:
        """See `digests`."""
        same = 0
        if context == self._context:
            pairs = enumerate(zip(self._messages, messages, strict=False))
            same = next((place for place, (old, new) in pairs if old != new), min(len(self._messages), len(messages)))
        chain = digests(messages, context, self._chain[:same])
        self._context, self._messages, self._chain = context, messages, chain
        return chain


def _places(message: Mapping[str, Any]) -> dict[str, int]:
    """Return the places of a message's calls, by their identifiers."""
    return {str(call.get("id")): place for place, call in enumerate(message.get("tool_calls") or [])}


def _told(message: Mapping[str, Any], calls: Mapping[str, int]) -> object:
    """Keep the parts of a message that count in its digest."""
    role, content = message.get("role"), message.get("content")
    text = text_of(content)
    said: object = _said_in_parts(content) if text is None else text
    if role == "assistant":
        asked = [_call(call) for call in message.get("tool_calls") or []]
        return [role, said.strip() if isinstance(said, str) else said, asked]
    if role == "tool":
        # Identifiers of calls are made anew by some clients: a result belongs to a place.
        return [role, said, calls.get(str(message.get("tool_call_id")), message.get("name"))]
    return ["system" if role == "developer" else role, said, message.get("name")]


def _call(call: Mapping[str, Any]) -> object:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):  # what a model wrote need not be JSON
            arguments = json.loads(arguments)
    return [function.get("name"), arguments]


def _said_in_parts(content: object) -> object:
    """Return the texts of a content with images, and the hash of each image: bytes count, and not how they are sent."""
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
