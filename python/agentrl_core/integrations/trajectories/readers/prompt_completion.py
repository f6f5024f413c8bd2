"""A prompt and its completion in TRL's format: two texts, or two lists of messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord, refuse
from agentrl_core.integrations.trajectories.readers.messages import (
    HiddenReasoning,
    Message,
    has_answer,
    is_messages,
    odd_message,
)
from agentrl_core.integrations.trajectories.recorded_tokens import has_tokens

_COMPLETIONS = ("completion", "response")


def recognised(value: object) -> bool:
    """Return whether a record has a prompt and a completion, or is a preference."""
    if not isinstance(value, Mapping) or has_tokens(value) or "response_length" in value:  # a sample of slime
        return False
    pair = "prompt" in value and any(name in value for name in _COMPLETIONS)
    return pair or {"chosen", "rejected"} <= value.keys()


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:  # noqa: ARG001 -- texts hide none
    """Yield a chat, or a prompt and a completion as texts, for each record."""
    for record in records:
        yield _chat(record.mapping(), record.where)


def _chat(row: Mapping[str, Any], where: str) -> Message:
    if "chosen" in row or "rejected" in row:
        refuse(where, "it is a preference, of which a chat holds one side", "give prompt and completion")
    name = next((name for name in _COMPLETIONS if row.get(name) is not None), None)
    prompt = row.get("prompt")
    if name is None or prompt is None:
        missing = "completion" if name is None else "prompt"
        raise InvalidInputError(f"{where} has no {missing}; give both a prompt and a completion")
    completion = row[name]
    rest = {key: value for key, value in row.items() if key not in ("prompt", name) and value is not None}
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion:
            raise InvalidInputError(f"{where}: the completion is empty; leave the record out")
        return {**rest, "prompt": prompt, "completion": completion}
    if not is_messages(prompt) or not is_messages(completion):
        odd = [_described(key, each) for key, each in (("prompt", prompt), (name, completion))]
        raise InvalidInputError(f"{where}: {' and '.join(odd)}; give two texts, or two lists of messages with a role")
    if prompt[-1]["role"] == "assistant":
        refuse(where, "its prompt ends with an answer, which the completion would go on from", "join the two messages")
    if not has_answer(completion):
        raise InvalidInputError(
            f"{where}: the completion has no message of an assistant; give one with role 'assistant', the answer"
        )
    context = [{**message, "weight": 0} if message["role"] == "assistant" else dict(message) for message in prompt]
    return {**rest, "messages": [*context, *map(dict, completion)]}


def _described(name: str, value: object) -> str:
    if isinstance(value, str):
        return f"{name} is a text"
    return f"{name} is a list of messages" if is_messages(value) else odd_message(value, name)
