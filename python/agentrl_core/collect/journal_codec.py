"""Encode the values of a journal as bytes, and decode them."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_core._util.json_text import to_json
from agentrl_core.engine.base import Segment, TopLogprobs
from agentrl_core.env.base import Context, StepResult
from agentrl_core.env.episode import JointStep, StepRecord
from agentrl_core.env.image import Image
from agentrl_core.exceptions import InvalidInputError

_SEGMENT = struct.Struct("<BqQII?")
_CACHED = struct.Struct("<I")
_UNKNOWN = (1 << 32) - 1
_EXPERTS = struct.Struct("<BII")
_FINISHES = ("stop", "length", "abort")
Begin = tuple[Any, bytes | str, Any, Sequence[Context]]
"""Start of an episode: observation, state, tools, and the contexts of its conversations."""


def write_segment(segment: Segment) -> bytes:
    """Encode a segment as bytes."""
    count, top = len(segment.tokens), segment.top
    likely = 0 if top is None else top.tokens.shape[1]
    header = _SEGMENT.pack(
        _FINISHES.index(segment.finish_reason),
        segment.policy_version,
        segment.seed,
        count,
        likely,
        segment.entropies is not None,
    )
    arrays = [np.ascontiguousarray(segment.tokens, np.int32), np.ascontiguousarray(segment.logprobs, np.float32)]
    if segment.entropies is not None:
        arrays.append(np.ascontiguousarray(segment.entropies, np.float32))
    if top is not None:
        arrays += [np.ascontiguousarray(top.tokens, np.int32), np.ascontiguousarray(top.logprobs, np.float32)]
    experts, cached = segment.routed_experts, segment.cached_tokens
    parts: list[Any] = [header, *[array.data for array in arrays]]
    if cached is not None or experts is not None:
        parts.append(_CACHED.pack(_UNKNOWN if cached is None else cached))
    if experts is not None:
        parts += [_EXPERTS.pack(experts.itemsize, *experts.shape), experts.tobytes()]
    return b"".join(parts)


def read_segment(payload: bytes) -> Segment:
    """Decode a segment of `write_segment`."""
    finish, version, seed, count, likely, has_entropies = _SEGMENT.unpack_from(payload)
    offset = _SEGMENT.size

    def take(kind: Any, number: int) -> Any:
        nonlocal offset
        array = np.frombuffer(payload, kind, number, offset).copy()
        offset += array.nbytes
        return array

    tokens, logprobs = take(np.int32, count), take(np.float32, count)
    entropies = take(np.float32, count) if has_entropies else None
    top = None
    if likely:
        shape = (count, likely)
        top = TopLogprobs(
            take(np.int32, count * likely).reshape(shape), take(np.float32, count * likely).reshape(shape)
        )
    # Last, since earlier versions did not write them.
    cached, experts = None, None
    if offset < len(payload):
        number = int(_CACHED.unpack_from(payload, offset)[0])
        cached = None if number == _UNKNOWN else number
        offset += _CACHED.size
    if offset < len(payload):
        size, rows, width = _EXPERTS.unpack_from(payload, offset)
        offset += _EXPERTS.size
        experts = take(np.uint8 if size == 1 else np.uint16, rows * width).reshape(rows, width)
    reason: Any = _FINISHES[finish]
    return Segment(tokens, logprobs, entropies, reason, version, seed, top, cached, experts)


def write_answer(answer: StepRecord | JointStep) -> bytes:
    """Encode an answer of an environment as bytes; a joint answer is a table of them."""
    if isinstance(answer, JointStep):
        of = {agent: _table(each) for agent, each in answer.of.items()}
        joint = {"of": of, "turn_of": list(answer.turn_of), "state_key": _packed(answer.state_key)}
        return _json({"joint": joint}, "StepResult")
    return _json(_table(answer), "StepResult")


def read_answer(payload: bytes) -> StepRecord | JointStep:
    """Decode an answer of `write_answer`."""
    table = json.loads(payload)
    joint = table.pop("joint", None)
    if joint is None:
        return _answer(table)
    of = {agent: _answer(each) for agent, each in joint["of"].items()}
    return JointStep(of, tuple(joint["turn_of"]), _unpacked(joint["state_key"]))


def _table(answer: StepRecord) -> dict[str, Any]:
    """Return an answer as JSON, without fields at their default."""
    outcome = answer.outcome
    table: dict[str, Any] = {}
    if outcome.observation is not None:
        table["observation"] = _shown(outcome.observation)
    if outcome.reward is not None:
        table["reward"] = repr(float(outcome.reward))
    for name in ("success", "info"):
        value = getattr(outcome, name)
        if value is not None:
            table[name] = value
    if outcome.context is not None:
        table["context"] = _placed(outcome.context)
    for name in ("terminated", "truncated", "flags"):
        if value := getattr(outcome, name):
            table[name] = value
    if outcome.facts:
        table["facts"] = {name: _packed(value) for name, value in outcome.facts.items()}
    if outcome.parallel_requests:
        table["besides"] = [_placed(context) for context in outcome.parallel_requests]
    table["state_key"] = _packed(answer.state_key)
    return table


def _answer(table: dict[str, Any]) -> StepRecord:
    state = _unpacked(table.pop("state_key"))
    reward = table.pop("reward", None)
    facts = {name: _unpacked(value) for name, value in (table.pop("facts", None) or {}).items()}
    table["observation"] = _seen(table.get("observation"))
    context = table.pop("context", None)
    table["context"] = None if context is None else _place(context)
    table["parallel_requests"] = tuple(map(_place, table.pop("besides", ())))
    outcome = StepResult(reward=None if reward is None else float(reward), facts=facts or None, **table)
    return StepRecord(outcome, state)


def plain_value(value: Any, name: str) -> Any:
    """Return the result of a side effect as a new process would read it.

    Raises:
        InvalidInputError: it does not consist of plain JSON values.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{name} returned {value!r:.60}, a value which cannot be stored: {error}; return numbers, texts, lists and "
            f"tables of them"
        ) from None


def write_value(value: Any) -> bytes:
    """Encode the result of a side effect as bytes."""
    return json.dumps(value).encode()


def read_value(payload: bytes) -> Any:
    """Decode a value of `write_value`."""
    return json.loads(payload)


def write_begin(begin: Begin) -> bytes:
    """Encode the start of an episode as bytes."""
    observation, state_key, tools, contexts = begin
    table: dict[str, Any] = {"state_key": _packed(state_key), "tools": tools}
    if contexts:
        table["contexts"] = [_placed(context) for context in contexts]
    if isinstance(observation, JointStep):
        of = {agent: _shown(content) for agent, content in observation.of.items()}
        table |= {"observation": of, "turn_of": list(observation.turn_of)}
    else:
        table["observation"] = _shown(observation)
    return _json(table, "Episode.observation")


def _json(table: Mapping[str, Any], name: str) -> bytes:
    try:
        return json.dumps(table).encode()
    except TypeError:  # numbers of NumPy and torch, or values without a JSON form
        return to_json(table, name).encode()


def read_begin(payload: bytes) -> Begin:
    """Decode the start of an episode from `write_begin`."""
    table: Mapping[str, Any] = json.loads(payload)
    observation = table["observation"]
    if "turn_of" in table:
        of = {agent: _seen(content) for agent, content in observation.items()}
        observation = JointStep(of, tuple(table["turn_of"]))
    else:
        observation = _seen(observation)
    return observation, _unpacked(table["state_key"]), table["tools"], tuple(map(_place, table.get("contexts", ())))


_KEYS = {"conversation": "lane", "replaces_history": "whole"}
"""Keys of a journal for fields of `Context`."""
_NAMES = {key: name for name, key in _KEYS.items()}


def _placed(context: Context) -> dict[str, Any]:
    """Return the context of an observation as JSON."""
    told = {_KEYS.get(name, name): value for name, value in vars(context).items() if value is not None and value != b""}
    return told | {"observation": _shown(context.observation), "state_key": _packed(context.state_key)}


def _place(table: dict[str, Any]) -> Context:
    """Read a context of `_placed`."""
    observation, state_key = _seen(table.pop("observation", None)), _unpacked(table.pop("state_key", {"hex": ""}))
    named = {_NAMES.get(name, name): value for name, value in table.items()}
    return Context(**named, observation=observation, state_key=state_key)


def _shown(content: Any) -> Any:
    """Return a content as JSON, with images in base64."""
    if content is None or isinstance(content, str):
        return content
    return [
        {**message, "content": [_part(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in content
    ]


def _part(part: str | Image) -> Any:
    return {"base64": base64.b64encode(part.content).decode()} if isinstance(part, Image) else part


def _seen(content: Any) -> Any:
    """Read a content of `_shown`."""
    for message in content if isinstance(content, list) else ():
        if isinstance(message.get("content"), list):
            message["content"] = [
                Image(base64.b64decode(part["base64"])) if isinstance(part, dict) else part
                for part in message["content"]
            ]
    return content


def _packed(value: Any) -> Any:
    """Encode bytes and special numbers for JSON with a tag."""
    if isinstance(value, (bytes, bytearray)):
        return {"hex": bytes(value).hex()}
    if isinstance(value, float):
        return {"float": repr(value)}
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        kind: Callable[[str], Any] = bytes.fromhex if "hex" in value else float
        return kind(next(iter(value.values())))
    return value
