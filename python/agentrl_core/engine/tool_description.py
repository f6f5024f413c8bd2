"""Describe tools in the system message, for templates that do not render them, in the widely trained Hermes form."""

from __future__ import annotations

import json
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


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, calls: bool = True) -> list[Message]:
    """Return a chat whose system message, added if missing, describes tools.

    Args:
        messages: the chat.
        tools: JSON schemas of the tools.
        calls: whether to describe the form of a call as well.

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
    """Return a chat with its calls written into the contents, in the form that `described` explains."""
    return [_written(message) if message.get("tool_calls") else message for message in messages]


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
    """Return a message with a text appended to its content."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return {**message, "content": f"{content}{between}{text}" if content else text}
    return {**message, "content": [*content, {"type": "text", "text": text}]}
