"""What a model said, as a message of `/v1/chat/completions`; and messages as a loop takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrl_core import _core
from agentrl_core.agents.history_digest import Json, text_of
from agentrl_core.engine.tool_description import written_calls


def parse_message(tokenizer: Any, text: str, opening: str, *, described: bool = False) -> Json:
    """The message that a text is, by the tokenizer's `response_template` (Hugging Face), where it has one.

    Args:
        tokenizer: or None: all that is said is the content.
        text: what was said, without its stop token.
        opening: the end of the prompt: a template can open the answer, such as with `<think>`.
        described: whether the prompt describes tools in words, since the chat template shows none: calls are found in
            the form that is described.
    """
    if getattr(tokenizer, "response_template", None) is None:
        rest, found = written_calls(text) if described else (text, [])
        if not found:
            return {"content": text}
        return {"content": rest or None, "tool_calls": [_call(call, place, text) for place, call in enumerate(found)]}
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
    """A message as the loop takes it: its content is a text, or texts; vLLM's templates get both alike."""
    content = message.get("content")
    texts = [] if content is None or isinstance(content, str) else [text_of([part]) for part in content]
    return {**message, "content": texts[0] if len(texts) == 1 else texts} if texts else dict(message)


def _call(call: Json, place: int, text: str) -> Json:
    function = call.get("function", call)
    arguments = function.get("arguments")
    told = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    name = f"call_{_core.rng.structural_seed(place, *text.encode()[:64]):016x}"
    return {"id": name, "type": "function", "function": {"name": function.get("name"), "arguments": told}}
