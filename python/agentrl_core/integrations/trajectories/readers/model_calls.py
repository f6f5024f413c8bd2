"""Join calls of a model, each with its whole context, to chats in which every answer is trained once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_core.engine.chat_messages import REASONING, plain_message
from agentrl_core.integrations.trajectories.readers.messages import Message


@dataclass(frozen=True)
class RecordedCall:
    """One recorded call of a model, with its context.

    Attributes:
        where: file and place, for errors.
        context: the messages that the model read.
        answer: the message that the model generated.
        tools: the schemas of the available tools.
        reasons: why the answer is not trained; empty if it is.
    """

    where: str
    context: Sequence[Message]
    answer: Message
    tools: Sequence[Mapping[str, Any]] = ()
    reasons: Sequence[str] = ()


@dataclass
class _OpenChat:
    messages: list[Message]
    known: list[object]
    tools: Sequence[Mapping[str, Any]]
    reasons: list[str] = field(default_factory=list)


def chats_of_calls(calls: Iterable[RecordedCall]) -> list[dict[str, Any]]:
    """Return the calls of one session as chats with `messages`, `tools` and `untrained`.

    A call continues the chat whose messages are its context. Otherwise the program rewrote the history, or ran several
    agents, and the call begins another chat. Answers in the context that do not come from an earlier call of the same
    chat are not trained (`weight` 0), so that no answer is trained twice. Reasoning may be missing in a history, since
    programs strip it.
    """
    chats: list[_OpenChat] = []
    for call in calls:
        known = [_comparable(message, f"{call.where}, message {at}") for at, message in enumerate(call.context)]
        fitting = [
            chat
            for chat in chats
            if list(chat.tools) == list(call.tools) and _is_continued(chat.known, known[: len(chat.known)])
        ]
        chat = max(fitting, key=lambda each: len(each.known), default=None)
        if chat is None:
            chat = _OpenChat([], [], call.tools)
            chats.append(chat)
        added = range(len(chat.known), len(known))
        copied = [at for at in added if call.context[at].get("role") == "assistant"]
        if copied:
            chat.reasons.append(f"{call.where}: {len(copied)} answers in its context are not of a call before it")
        chat.messages += [{**call.context[at], "weight": 0} if at in copied else dict(call.context[at]) for at in added]
        chat.messages.append(dict(call.answer))
        chat.reasons += call.reasons
        chat.known = [*known, _comparable(call.answer, call.where)]
    return [
        {
            "messages": chat.messages,
            **({"tools": [dict(tool) for tool in chat.tools]} if chat.tools else {}),
            **({"untrained": chat.reasons} if chat.reasons else {}),
        }
        for chat in chats
    ]


def _comparable(message: Mapping[str, Any], where: str) -> tuple[object, ...]:
    """Return the parts of a message that must be equal in a call and in later histories; reasoning comes last."""
    plain = plain_message(message, where)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in plain.get("tool_calls", ())]
    return plain["role"], plain["content"], calls, plain.get("tool_call_id"), plain.get(REASONING[0])


def _is_continued(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return len(before) == len(after) and all(
        old[:-1] == new[:-1] and new[-1] in (None, old[-1]) for old, new in zip(before, after, strict=True)
    )
