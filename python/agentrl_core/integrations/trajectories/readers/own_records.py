"""Records that `from_chats` reads directly: chats, and token ids with masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord
from agentrl_core.integrations.trajectories.readers.messages import HiddenReasoning, Message, is_messages, odd_message
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
        places, messages = [first.where], [first.value]
        for record in records:
            places.append(record.where)
            messages.append(record.mapping())
        if not is_messages(messages):
            odd = next(place for place, message in zip(places, messages, strict=True) if "role" not in message)
            raise InvalidInputError(f"{first.where} is a message, but {odd} has no role; give only messages")
        yield {"messages": messages}
        return
    for record in chain([first], records):
        if isinstance(record.value, list):
            if not is_messages(record.value):
                raise InvalidInputError(
                    f"{odd_message(record.value, record.where)}; give a list of messages, each an object with a role"
                )
            yield {"messages": record.value}
        elif is_messages(record.mapping().get("messages")):
            yield dict(record.mapping())
        else:
            odd = odd_message(record.mapping().get("messages"), "messages")
            raise InvalidInputError(f"{record.where}: {odd}; give a list of objects with a role")


def token_rows(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:  # noqa: ARG001 -- ids hide none
    """Yield the records; refuse one without token ids."""
    for record in records:
        if not has_tokens(record.mapping()):
            raise InvalidInputError(
                f"{record.where} has no token ids; give input_ids, or prompt_token_ids and completion_token_ids, or "
                "turns"
            )
        yield dict(record.mapping())


def _is_message(value: Mapping[str, object]) -> bool:
    return isinstance(value.get("role"), str) and "content" in value and "messages" not in value
