"""Records that `from_chats` reads directly: chats, and token ids with masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord
from agentrl_core.integrations.trajectories.readers.messages import HiddenReasoning, Message, is_messages
from agentrl_core.integrations.trajectories.recorded_tokens import has_tokens


def is_chat(value: object) -> bool:
    """Return whether a record is a chat, a list of messages, or one message of a file that is one chat."""
    if isinstance(value, Mapping):
        return not has_tokens(value) and (is_messages(value.get("messages")) or _is_message(value))
    return is_messages(value)


def is_tokens(value: object) -> bool:
    """Return whether a record has token ids."""
    return isinstance(value, Mapping) and has_tokens(value)


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:  # noqa: ARG001 -- texts hide none
    """Yield each record as a chat; a file of messages is one chat."""
    first = next(records, None)
    if first is None:
        return
    if isinstance(first.value, Mapping) and _is_message(first.value):
        messages = [first.value, *(record.mapping() for record in records)]
        if not is_messages(messages):
            raise InvalidInputError(f"{first.where} is a message, but a later record has no role; give only messages")
        yield {"messages": messages}
        return
    for record in chain([first], records):
        if isinstance(record.value, list):
            if not is_messages(record.value):
                raise InvalidInputError(
                    f"{record.where} is {record.value!r:.60}; give a list of messages, each an object with a role"
                )
            yield {"messages": record.value}
        elif is_messages(record.mapping().get("messages")):
            yield dict(record.mapping())
        else:
            raise InvalidInputError(f"{record.where} has no list 'messages' of objects with a role; give one")


def token_rows(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:  # noqa: ARG001 -- ids hide none
    """Yield each record with token ids."""
    for record in records:
        if not has_tokens(record.mapping()):
            raise InvalidInputError(f"{record.where} has no token ids, which the records before it have; give them")
        yield dict(record.mapping())


def _is_message(value: Mapping[str, object]) -> bool:
    return isinstance(value.get("role"), str) and "content" in value and "messages" not in value
