"""What a model said, as a message of `/v1/chat/completions`; and messages as templates expect them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agentrl_core import _core
from agentrl_core.agents.history_digest import Json, text_of


def message_of(tokenizer: Any, text: str, opening: str) -> Json:
    """The message that a text is, by the tokenizer's `response_template` (Hugging Face), where it has one.

    Args:
        tokenizer: or None: all that is said is the content.
        text: what was said, without its stop token.
        opening: the end of the prompt: a template can open the answer, such as with `<think>`.
    """
    if getattr(tokenizer, "response_template", None) is None:
        return {"content": text}
    try:
        message = dict(tokenizer.parse_response(text, prefix=opening))
    except ValueError:
        return {"content": text}  # a call that is no JSON is what was said
    message.pop("role", None)
    calls = message.pop("tool_calls", None) or []
    message["content"] = message.get("content") or None
    if calls:
        message["tool_calls"] = [_call(call, place, text) for place, call in enumerate(calls)]
    thinking = message.pop("thinking", None)
    return message | ({"reasoning": thinking} if thinking else {})


def for_template(message: Mapping[str, Any]) -> Json:
    """A message as templates expect it: texts are not in parts, and arguments of calls are objects."""
    text = text_of(message.get("content"))
    told = dict(message) if text is None else {**message, "content": text}
    calls = []
    for call in message.get("tool_calls") or []:
        function = dict(call.get("function") or {})
        with suppress(TypeError, ValueError):  # what a model wrote need not be JSON
            function["arguments"] = json.loads(function.get("arguments") or "{}")
        calls.append(call | {"function": function})
    return told | {"tool_calls": calls} if calls else told


def _call(call: Json, place: int, text: str) -> Json:
    function = call.get("function", call)
    arguments = function.get("arguments")
    told = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    name = f"call_{_core.rng.structural_seed(place, *text.encode()[:64]):016x}"
    return {"id": name, "type": "function", "function": {"name": function.get("name"), "arguments": told}}
