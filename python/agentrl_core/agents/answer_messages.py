"""Parse model output to messages of `/v1/chat/completions`, and convert these for a collector."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl_core import _core
from agentrl_core.agents.history_digest import Json, text_of
from agentrl_core.env.answer_form import AnswerForm
from agentrl_core.env.image import Image


def parse_message(
    tokenizer: Any, text: str, opening: str, *, form: AnswerForm | None = None, tools: Sequence[Mapping[str, Any]] = ()
) -> Json:
    """Parse generated text into an assistant's message: content, reasoning and calls.

    The tokenizer's `response_template` (Hugging Face) parses it if there is one, otherwise the form of the chat
    template. Reasoning stays in the content if the template does not render it. Calls stay in the content if the
    request has no tools, or if one of the calls is malformed.

    Args:
        tokenizer: the tokenizer; None: there is no `response_template`.
        text: the generated text, without its stop token.
        opening: the end of the prompt, since a template can open the answer, such as with `<think>`.
        form: form of answers in the chat template; None: the whole text is the content.
        tools: JSON schemas of the request's tools.
    """
    if getattr(tokenizer, "response_template", None) is None:
        return {"content": text} if form is None else _by_form(form, text, tools)
    try:
        message = dict(tokenizer.parse_response(text, prefix=opening))
    except ValueError:
        return {"content": text}  # a call that is not JSON is plain text
    message.pop("role", None)
    calls = message.pop("tool_calls", None) or []
    message["content"] = message.get("content") or None
    if calls:
        message["tool_calls"] = [_call(call, place, text) for place, call in enumerate(calls)]
    thinking = message.pop("thinking", None)
    return message | ({"reasoning": thinking} if thinking else {})


def _by_form(form: AnswerForm, text: str, tools: Sequence[Mapping[str, Any]]) -> Json:
    """Parse a text in the form of a chat template into a message."""
    reasoning, answer, calls = (form if tools else replace(form, calls=None)).parse(text, tools)
    if any("error" in call for call in calls):
        return {"content": text}
    if not form.shows_thoughts and reasoning:
        answer, reasoning = text if not calls else f"{form.thought_begin}{reasoning}{form.thought_end}{answer}", ""
    message: Json = {"content": answer if answer or not (calls or reasoning) else None}
    if calls:
        message["tool_calls"] = [_call(call, place, text) for place, call in enumerate(calls)]
    return message | ({"reasoning": reasoning} if reasoning else {})


def for_template(message: Mapping[str, Any]) -> Json:
    """Return a message in the form that a collector expects: its content is a text, or a list of texts and images."""
    content = message.get("content")
    parts = [] if content is None or isinstance(content, str) else content
    texts = [part if isinstance(part, Image) else text_of([part]) for part in parts]
    is_one = len(texts) == 1 and not isinstance(texts[0], Image)
    return {**message, "content": texts[0] if is_one else texts} if texts else dict(message)


def _call(call: Json, place: int, text: str) -> Json:
    function = call.get("function", call)
    arguments = function.get("arguments")
    encoded = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    name = f"call_{_core.rng.structural_seed(place, *text.encode()[:64]):016x}"
    return {"id": name, "type": "function", "function": {"name": function.get("name"), "arguments": encoded}}
