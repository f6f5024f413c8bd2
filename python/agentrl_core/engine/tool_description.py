"""Tools in words, for chat templates that show none: in the form of Hermes, which many models were trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_DESCRIPTION = """# Tools

You can call these functions:
<tools>
{schemas}
</tools>"""
_FORM = """

To call a function, write its name and arguments as JSON between <tool_call> tags, once for each call:
<tool_call>
{"name": "function name", "arguments": {"argument name": "value"}}
</tool_call>"""
_WRITTEN = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, calls: bool = True) -> list[Message]:
    """Return a chat whose system message describes tools; a chat without one gets one.

    Args:
        messages: the chat.
        tools: JSON schemas of the tools.
        calls: whether the form of a call is described, too.

    Example:
        >>> from agentrl_core.engine.tool_description import described
        >>> [system, user] = described([{"role": "user", "content": "2 + 2?"}], [{"name": "add"}])
        >>> system["role"], '{"name": "add"}' in system["content"], user["content"]
        ('system', True, '2 + 2?')
    """
    schemas = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
    text = _DESCRIPTION.format(schemas=schemas) + (_FORM if calls else "")
    if not messages or messages[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    return [_longer(messages[0], text, "\n\n"), *messages[1:]]


def with_written_calls(messages: Sequence[Message]) -> list[Message]:
    """Return a chat whose calls are written into the contents, as a model writes them that reads `described`."""
    return [_written(message) if message.get("tool_calls") else message for message in messages]


def written_calls(text: str) -> tuple[str, list[Message]]:
    """Return the text of an answer without its calls, and the calls; one that is not JSON stays text.

    Example:
        >>> from agentrl_core.engine.tool_description import written_calls
        >>> written_calls('I add.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
        ('I add.', [{'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}])
    """
    calls: list[Message] = []

    def taken(match: re.Match[str]) -> str:
        try:
            call = json.loads(match[1])
            function = {"name": call["name"], "arguments": call.get("arguments") or {}}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return match[0]
        if not isinstance(function["name"], str) or not isinstance(function["arguments"], Mapping):
            return match[0]
        calls.append({"type": "function", "function": function})
        return ""

    rest = _WRITTEN.sub(taken, text)
    return (rest.strip() if calls else text), calls


def _written(message: Message) -> Message:
    calls = [
        f"<tool_call>\n{json.dumps(_call(each['function']), ensure_ascii=False)}\n</tool_call>"
        for each in message["tool_calls"]
    ]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return _longer(rest, "\n".join(calls), "\n")


def _call(function: Mapping[str, Any]) -> Message:
    return {"name": function["name"], "arguments": function["arguments"]}


def _longer(message: Message, text: str, between: str) -> Message:
    """A message with a text at the end of its content."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return {**message, "content": f"{content}{between}{text}" if content else text}
    return {**message, "content": [*content, {"type": "text", "text": text}]}
