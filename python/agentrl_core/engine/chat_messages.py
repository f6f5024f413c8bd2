"""Convert chat messages from the many forms in use to the one form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from agentrl_core.env.image import Image
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

Message = dict[str, Any]

REASONING = ("reasoning_content", "reasoning", "thinking")
"""The field names that templates and servers use for the reasoning of an answer."""
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_THOUGHTS = {"thinking": "thinking", "reasoning": "reasoning"}
_WEIGHTS = ("weight", "loss_weight", "train", "training", "trainable")
_DEMONSTRATION = "is_demo"
IMAGE = {"type": "image"}


def plain_message(message: object, where: str) -> Message:
    """Return a message in the form that chat templates expect.

    - Keys without a value are left out.
    - `content` is a text, or a list of parts of type `text` and `image`. Reasoning among the parts moves to the fields
      of reasoning, and a refusal becomes the content.
    - The reasoning of an answer is stored under all names that templates read (`REASONING`).
    - Calls become `{"type": "function", "function": {"name", "arguments"}}` with arguments as an object, also those
      given as `function_call`, flat, or with the name as `function`. Role `function` becomes `tool`.

    Args:
        message: the message.
        where: place of the message for errors, such as `chat 3, message 0`.

    Raises:
        InvalidInputError: the message has no role, invalid contents, reasoning or calls, or text that is not Unicode.
        UnsupportedError: a part is neither text nor image, or a call is not a function call.

    Example:
        >>> from agentrl_core.engine.chat_messages import plain_message
        >>> plain_message({"role": "assistant", "function_call": {"name": "add", "arguments": '{"a": 1}'}}, "message 0")
        {'role': 'assistant', 'content': '', 'tool_calls': [{'type': 'function', 'function': {'name': 'add', \
'arguments': {'a': 1}}}]}
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidInputError(f"{where} is {message!r:.80}; give a dict with 'role' and 'content'")
    plain = {name: value for name, value in message.items() if value is not None}
    if plain["role"] == "function":
        plain["role"] = "tool"
    plain["content"], thoughts = _content(plain.get("content"), where)
    if plain["role"] == "assistant":
        _answer(plain, thoughts, where)
    elif thoughts:
        raise UnsupportedError(
            f"{where} of role {plain['role']!r} has reasoning; remove it, or give it in a message of the assistant"
        )
    _check_encodable(plain, where)
    return plain


def plain_tools(tools: object, where: str) -> list[Message]:
    """Return the schemas of tools as a list, also if they are JSON text, as in some data sets.

    Raises:
        InvalidInputError: the value is not a list of schemas.

    Example:
        >>> from agentrl_core.engine.chat_messages import plain_tools
        >>> plain_tools('[{"type": "function", "function": {"name": "add"}}]', "chat 0")
        [{'type': 'function', 'function': {'name': 'add'}}]
    """
    parsed = from_json(tools) if isinstance(tools, str) and tools.strip() else tools
    if not parsed:
        return []
    schemas = [from_json(tool) for tool in parsed] if isinstance(parsed, (list, tuple)) else []
    if not schemas:
        raise InvalidInputError(f"{where}: tools is {tools!r:.80}; give a list of the tools' JSON schemas")
    for place, schema in enumerate(schemas):
        if not isinstance(schema, Mapping):
            raise InvalidInputError(f"{where}: tools[{place}] is {schema!r:.80}; give a JSON schema")
    _check_encodable(schemas, f"{where}: tools")
    return [dict(schema) for schema in schemas]


def is_trained(message: Mapping[str, Any], where: str) -> bool:
    """Return whether to train an assistant's message: not if `weight` (or an equivalent field) is 0, or `is_demo` is 1.

    Demonstrations of SWE-agent, marked by `is_demo`, are not trained.

    Raises:
        InvalidInputError: a weight is not a number.
        UnsupportedError: a weight is neither 0 nor 1, or a message that is not an answer has weight 1.

    Example:
        >>> from agentrl_core.engine.chat_messages import is_trained
        >>> is_trained({"role": "assistant", "content": "Hot.", "weight": 0}, "chat 0, message 1")
        False
    """
    trained = True
    flags = {name: message[name] for name in (*_WEIGHTS, _DEMONSTRATION) if message.get(name) is not None}
    for name, value in flags.items():
        if not isinstance(value, (bool, int, float)):
            raise InvalidInputError(f"{where}: {name} is {value!r:.40}; give 0 or 1")
        if value not in (0, 1):
            raise UnsupportedError(f"{where}: {name} is {value}; an answer is trained or not: give 0 or 1")
        if name == _DEMONSTRATION:
            trained &= not value
        elif value and message["role"] != "assistant":
            raise UnsupportedError(
                f"{where}: {name} is {value} on a message of role {message['role']!r}; only answers of the assistant "
                f"are trained: leave {name} out"
            )
        else:
            trained &= bool(value)
    return trained


def from_json(given: Any) -> Any:
    """Return the value of a JSON text; return anything else unchanged.

    Example:
        >>> from agentrl_core.engine.chat_messages import from_json
        >>> from_json('{"a": 1}'), from_json("no JSON"), from_json(None)
        ({'a': 1}, 'no JSON', None)
    """
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):  # numbers of thousands of digits raise ValueError
        return given


def joined(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the texts of a content joined by newlines, as vLLM does for templates that do not support parts."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def is_text(content: object) -> bool:
    """Return whether a plain content has no image."""
    return isinstance(content, str) or (isinstance(content, list) and IMAGE not in content)


def texts_of(content: str | Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of a plain content, in their order."""
    return [content] if isinstance(content, str) else [part["text"] for part in content if part != IMAGE]


def leaves(value: object) -> Iterator[object]:
    """Yield the keys and values of a call's arguments, including those of nested values."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def _check_encodable(value: object, where: str) -> None:
    """Refuse half of a surrogate pair, which JSON can contain but no tokenizer accepts."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{where} holds {error.object[error.start]!r}, half of a surrogate pair, which is not text; remove it"
        ) from error


def _content(content: object, where: str) -> tuple[str | list[Message], list[str]]:
    """Return the content with its parts in one form, and the reasoning texts that were among the parts."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, (list, tuple)):
        raise InvalidInputError(f"{where}: content is {content!r:.80}; give a text, or a list of parts")
    parts: list[Message] = []
    thoughts: list[str] = []
    for place, part in enumerate(content):
        if isinstance(part, Image) or part == IMAGE:
            parts.append(IMAGE)
            continue
        kind = "text" if isinstance(part, str) else part.get("type") if isinstance(part, Mapping) else None
        name = _TEXTS.get(str(kind)) or _THOUGHTS.get(str(kind))
        if name is None:
            problem = f"has type {kind!r:.40}" if isinstance(part, Mapping) else f"is {part!r:.40}"
            raise UnsupportedError(
                f'{where}: content[{place}] {problem}; give a text part, {{"type": "text", "text": ...}}'
            )
        text = part if isinstance(part, str) else part.get(name, part.get("text"))
        if text is None:  # an empty part of a file with one schema for all parts
            continue
        if not isinstance(text, str):
            raise InvalidInputError(f"{where}: content[{place}] of type {kind!r} holds {text!r:.40}; give a text")
        if kind in _THOUGHTS:
            thoughts.append(text)
        else:
            parts.append({"type": "text", "text": text})
    if len(parts) == 1 and parts[0] != IMAGE:
        return parts[0]["text"], thoughts
    return parts or "", thoughts


def _answer(plain: Message, thoughts: Sequence[str], where: str) -> None:
    """Bring the reasoning, the refusal and the calls of an answer into one form."""
    texts = [plain.pop(name) for name in REASONING if name in plain]
    for text in texts:
        if not isinstance(text, str):
            raise InvalidInputError(f"{where}: the reasoning is {text!r:.80}; give a text")
    reasonings = list(dict.fromkeys(text for text in (*texts, "\n".join(thoughts)) if text))
    if len(reasonings) > 1:
        raise InvalidInputError(
            f"{where} has two reasonings, {reasonings[0]!r:.40} and {reasonings[1]!r:.40}; give one"
        )
    if reasonings:
        plain |= dict.fromkeys(REASONING, reasonings[0])
    refusal = plain.pop("refusal", None)
    if refusal and plain["content"] not in ("", refusal):
        raise UnsupportedError(
            f"{where} has content {plain['content']!r:.40} and refusal {refusal!r:.40}; give one of them"
        )
    if refusal:
        plain["content"] = refusal
    calls = plain.pop("tool_calls", None) or []
    if plain.get("function_call"):
        calls = [*calls, plain["function_call"]]
    plain.pop("function_call", None)
    if not isinstance(calls, (list, tuple)):
        raise InvalidInputError(f"{where}: tool_calls is {calls!r:.80}; give a list of calls")
    if calls:
        plain["tool_calls"] = [_call(call, f"{where}, call {place}") for place, call in enumerate(calls)]


def _call(call: object, where: str) -> Message:
    """Return a call in the form that templates expect."""
    if not isinstance(call, Mapping):
        _refuse_call(call, where)
    kind = call.get("type") or "function"
    if kind != "function":
        raise UnsupportedError(f"{where} is of type {kind!r:.40}; give calls of type 'function'")
    function = call.get("function")
    inner: Any = function if isinstance(function, Mapping) else call
    name = function if isinstance(function, str) else inner.get("name")
    if not isinstance(name, str) or not name:
        _refuse_call(call, where)
    other_fields = {
        key: value for key, value in call.items() if value and not (inner is call and key in ("name", "arguments"))
    }
    name_and_arguments = {
        "name": name,
        "arguments": _arguments(call.get("arguments") if inner is call else inner.get("arguments")),
    }
    return {
        **other_fields,
        "type": "function",
        "function": name_and_arguments if inner is call else {**inner, **name_and_arguments},
    }


def _refuse_call(call: object, where: str) -> NoReturn:
    raise InvalidInputError(f'{where} is {call!r:.80}; give {{"function": {{"name": ..., "arguments": {{...}}}}}}')


def _arguments(arguments: Any) -> Any:
    """Return the arguments of a call as an object; text that is not a JSON object is unchanged."""
    if arguments is None or arguments == "":
        return {}
    parsed = from_json(arguments)
    return parsed if isinstance(parsed, Mapping) else arguments
