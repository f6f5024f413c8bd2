"""Convert steps of ATIF to messages of a chat and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_core.engine.chat_messages import IMAGE, REASONING, joined, plain_message
from agentrl_core.env.message_images import is_image_part
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

Step = Mapping[str, Any]
Message = dict[str, Any]

_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_SOURCES = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}
_CARRIED = "agentrl_message"
"""Key in `extra` of a step or result for the message entries for which ATIF has no field."""
_HELD = frozenset({"role", "content", "tool_calls", "function_call", "tool_call_id", *REASONING})


def messages_of(trajectory: Mapping[str, Any], where: str) -> tuple[list[Message], list[int]]:
    """Return the messages of a trajectory, and the indices of those that the model sampled.

    An agent's step with copied context, or without a model call (`llm_call_count` 0), is not trained: its message has
    `weight` 0.

    Args:
        trajectory: the trajectory in ATIF.
        where: name of the trajectory in errors, such as `trajectory 3`.

    Raises:
        InvalidInputError: steps, calls or results have an invalid form, or a source is unknown.
        UnsupportedError: contents are not text.
    """
    messages: list[Message] = []
    sampled: list[int] = []
    for number, step in enumerate(steps_in(trajectory, where), start=1):
        place = f"{where}, step {number}"
        source = step.get("source")
        if source not in _ROLES:
            raise InvalidInputError(f"{place}: source is {source!r:.40}; give 'system', 'user' or 'agent'")
        message: Message = {"role": _ROLES[source], "content": _content(step.get("message"), f"{place}: message")}
        if step.get("reasoning_content"):
            message["reasoning_content"] = step["reasoning_content"]
        if step.get("tool_calls"):
            calls = _objects(step["tool_calls"], "tool_calls", place)
            message["tool_calls"] = [_call(call, f"{place}, tool_calls[{at}]") for at, call in enumerate(calls)]
        if is_sampled(step):
            sampled.append(len(messages))
        elif source == "agent":
            message["weight"] = 0
        messages.append(message | _carried(step))
        observation = step.get("observation") or {}
        if not isinstance(observation, Mapping):
            raise InvalidInputError(f"{place}: observation is {observation!r:.60}; give an object with 'results'")
        for at, result in enumerate(_objects(observation.get("results") or (), "results", place)):
            content = _content(result.get("content"), f"{place}: results[{at}].content")
            source = {"tool_call_id": result["source_call_id"]} if result.get("source_call_id") else {}
            messages.append({"role": "tool", "content": content, **source, **_carried(result)})
    return messages, sampled


def steps_in(trajectory: Mapping[str, Any], where: str) -> Sequence[Step]:
    """Return the steps of a trajectory.

    Raises:
        InvalidInputError: the steps are not a list of objects.
    """
    return _objects(trajectory.get("steps") or (), "steps", where)


def is_sampled(step: Step) -> bool:
    """Return whether the model sampled a step in this trajectory."""
    return step.get("source") == "agent" and not step.get("is_copied_context") and step.get("llm_call_count") != 0


def steps_of(messages: Sequence[Mapping[str, Any]], where: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Return messages as steps, and the indices of the steps that are answers.

    ATIF has the sources system, user and agent; the result of a tool belongs to the step before it. Values without a
    field, such as the role developer or the name of a tool, are stored in `extra.agentrl_message`.

    Args:
        messages: messages of a chat.
        where: name of the chat in errors.

    Raises:
        InvalidInputError: a message has an invalid form.
        UnsupportedError: contents are not text, or arguments are not an object.
    """
    steps: list[dict[str, Any]] = []
    answers: list[int] = []
    for number, message in enumerate(messages):
        place = f"{where}, message {number}"
        content = message.get("content")
        parts = list(content) if isinstance(content, (list, tuple)) else []
        urls = [_url(part) for part in parts if is_image_part(part)]
        plain_content = {"content": [IMAGE if is_image_part(part) else part for part in parts]} if urls else {}
        plain = plain_message({**message, **plain_content}, place)
        text = _parts(plain["content"], urls) if urls else _text(plain["content"], f"{place}: content")
        more = {name: value for name, value in message.items() if name not in _HELD and value is not None}
        role = plain["role"]
        if role == "tool" and steps:
            result: dict[str, Any] = {"content": text}
            known = {call["tool_call_id"] for call in steps[-1].get("tool_calls") or ()}
            call = message.get("tool_call_id")
            if call is not None and (call in known or not known):
                result["source_call_id"] = call
            elif call is not None:
                more["tool_call_id"] = call
            steps[-1].setdefault("observation", {"results": []})["results"].append(_with_carried(result, more))
            continue
        if role not in _SOURCES or message["role"] != role:
            more["role"] = message["role"]
        elif role == "developer":
            more["role"] = role
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": _SOURCES.get(role, "user"), "message": text}
        if role == "assistant":
            answers.append(len(steps))
            if plain.get(REASONING[0]):
                step["reasoning_content"] = plain[REASONING[0]]
            if plain.get("tool_calls"):
                step["tool_calls"] = list(_calls(plain["tool_calls"], f"call_{number}", place))
        elif message.get("tool_call_id") is not None:
            more["tool_call_id"] = message["tool_call_id"]
        steps.append(_with_carried(step, more))
    return steps, answers


def _carried(part: Step) -> Message:
    extra = part.get("extra")
    found = extra.get(_CARRIED) if isinstance(extra, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def _with_carried(part: dict[str, Any], more: Message) -> dict[str, Any]:
    return {**part, "extra": {_CARRIED: more}} if more else part


def _call(call: Step, place: str) -> Message:
    name, arguments = call.get("function_name"), call.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, (Mapping, str, type(None))):
        field, valid = ("arguments", "an object") if isinstance(name, str) else ("function_name", "the tool's name")
        raise InvalidInputError(f"{place}: {field} is {call.get(field)!r:.60}; give {valid}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    identity = {} if call.get("tool_call_id") is None else {"id": call["tool_call_id"]}
    return {**identity, "type": "function", "function": {"name": name, "arguments": text}}


def _calls(calls: Sequence[Message], name: str, place: str) -> Iterator[dict[str, Any]]:
    for number, call in enumerate(calls):
        function = call["function"]
        if not isinstance(function["arguments"], Mapping):
            raise UnsupportedError(
                f"{place}, call {number}: arguments is {function['arguments']!r:.60}; give an object, or leave the "
                "draw out (batch.select_draws)"
            )
        yield {
            "tool_call_id": str(call.get("id") or f"{name}_{number}"),
            "function_name": function["name"],
            "arguments": dict(function["arguments"]),
        }


def _objects(value: Any, name: str, place: str) -> Sequence[Step]:
    if not isinstance(value, (list, tuple)):
        raise InvalidInputError(f"{place}: {name} is {value!r:.60}; give a list of objects")
    for number, each in enumerate(value):
        if not isinstance(each, Mapping):
            raise InvalidInputError(f"{place}: {name}[{number}] is {each!r:.60}; give an object")
    return value


def _content(content: Any, place: str) -> str | list[Message]:
    """Return the content of a step or a result as a message's content: a text, or texts and images."""
    if not isinstance(content, list) or not any(map(_is_image, content)):
        return _text(content, place)
    return [
        {"type": "image_url", "image_url": {"url": part["source"]["path"]}}
        if _is_image(part)
        else {"type": "text", "text": _text([part], place, first=number)}
        for number, part in enumerate(content)
    ]


def _is_image(part: object) -> bool:
    """Return whether a part of an ATIF content is an image with a path, which may be a `data:` URL."""
    source = part.get("source") if isinstance(part, Mapping) and part.get("type") == "image" else None
    return isinstance(source, Mapping) and isinstance(source.get("path"), str)


def _parts(content: Any, urls: Sequence[str]) -> list[Message]:
    """Return a plain content as ATIF parts, with its images as the given URLs."""
    remaining_urls = iter(urls)
    return [
        _image(next(remaining_urls)) if part == IMAGE else {"type": "text", "text": part["text"]} for part in content
    ]


def _image(url: str) -> Message:
    return {"type": "image", "source": {"media_type": url.partition(";")[0].removeprefix("data:"), "path": url}}


def _url(part: Mapping[str, Any]) -> str:
    image_url = part.get("image_url")
    return str(image_url.get("url") if isinstance(image_url, Mapping) else image_url)


def _text(content: Any, place: str, *, first: int = 0) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    for number, part in enumerate(parts, first):
        if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            name = f"{place}[{number}]" if isinstance(content, list) else place
            valid = "a part" if isinstance(content, list) else "a text, or a list of parts"
            raise UnsupportedError(f"{name} is {part!r:.60}; give {valid} of type 'text', with its text in 'text'")
    return joined(parts)
