"""A chat rendered once, from which the turns of its answers are cut by their texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl_core.engine.chat_messages import REASONING, texts_of
from agentrl_core.engine.chat_texts import Claims, missing_of_answer, missing_of_history

if TYPE_CHECKING:
    from agentrl_core.engine.chat_messages import Message

_THOUGHT = REASONING[0]
# JSON writes a character as six at most; templates add the rest to a message.
_ESCAPED, _AROUND = 6, 2000


@dataclass(frozen=True)
class RenderedTurn:
    """The texts of one answer.

    Attributes:
        before: the messages before it, without the opening of the answer.
        context: all that the model reads.
        action: the text that it generates.
    """

    before: str
    context: str
    action: str


@dataclass(frozen=True)
class _Shape:
    """How the answers of one kind are written in the history, and how as a turn of their own."""

    before: str
    """Between the text of the last message and the opening of the answer."""
    opening: str
    """From there to the end of the context."""
    lead: str
    """Between the same place in the history and the first text of the answer."""
    own_lead: tuple[str, ...]
    """The text that the model generates before that; the two pieces around the thought if the history drops it."""
    end: str
    own_end: str
    """The token that ends the turn."""


@dataclass(frozen=True)
class _Place:
    """Where an answer is in a text: its own texts, and the token after them."""

    begin: int
    end: int
    close: int
    closed: int


class RenderedHistory:
    """A rendered chat, in which each kind of answer is found as the first one of its kind was written.

    The first answer of a kind is rendered on its own, as the model reads and writes it; `learn` compares it with the
    history. `turn` then cuts a later answer of that kind out of the history. It returns None if anything differs: a
    text is missing, or other characters are between the texts. The caller renders that answer on its own, and checks
    a sample of the cut ones.

    Args:
        text: the rendered chat; "": the template refuses it.
        closes: finds the token that ends an answer in the middle of a chat.
    """

    def __init__(self, text: str, closes: re.Pattern[str]) -> None:
        self._text, self._closes = text, closes
        self._shapes: dict[str, _Shape] = {}
        self._cursor: int | None = 0
        """Where the last answer ends; None: the history writes it otherwise."""
        self._dropped = False
        """Whether the history drops a thought since the last message of a user. Templates do so once a later user's
        message is there, so that the answers in between read the thought, and are not cut."""

    def learn(self, kind: str, messages: Sequence[Message], turn: RenderedTurn) -> None:
        """Compare the history with an answer that was rendered on its own.

        Args:
            kind: of the answer and of the messages around it; see `kind_of`.
            messages: those after the answer before, and the answer.
            turn: as it was rendered.
        """
        cursor, self._cursor = self._cursor, None
        self._dropped &= not _has_user(messages)
        if not self._text or not self._text.startswith(turn.before) or not turn.context.startswith(turn.before):
            return
        start, answer = len(turn.before), messages[-1]
        window = self._text[start : start + _reach(messages[-1:])]
        pieces: tuple[str, ...] = ()
        action = turn.action
        there = _place_of(answer, window, self._closes)
        if there is None and answer.get(_THOUGHT):
            answer, pieces, action = _without_thought(answer, action)
            there = _place_of(answer, window, self._closes)
        own = _place_of(answer, action, None)
        if there is None or own is None:
            return
        self._cursor = start + there.closed
        self._dropped |= bool(pieces)
        between, tail = window[there.end : there.close], action[own.end :]
        last = None if cursor is None else self._end_of(messages[:-1], cursor)
        same = window[there.begin : there.end] == action[own.begin : own.end]
        if last is None or last > start or not same or not tail.startswith(between):
            return
        self._shapes[kind] = _Shape(
            before=self._text[last:start],
            opening=turn.context[start:],
            lead=window[: there.begin],
            own_lead=(*pieces, action[: own.begin]),
            end=window[there.close : there.closed],
            own_end=tail[len(between) :],
        )

    def turn(self, kind: str, messages: Sequence[Message]) -> RenderedTurn | None:
        """Return the turn of an answer; None: it has to be rendered on its own. Arguments are those of `learn`."""
        shape = self._shapes.get(kind)
        dropped = self._dropped and not _has_user(messages)
        if shape is None or self._cursor is None or dropped:
            return None
        last = self._end_of(messages[:-1], self._cursor)
        if last is None or not self._text.startswith(shape.before, last):
            return None
        start, answer = last + len(shape.before), messages[-1]
        window = self._text[start : start + _reach(messages[-1:])]
        lead = shape.own_lead[0]
        if len(shape.own_lead) > 1:
            lead += answer[_THOUGHT] + shape.own_lead[1]
            answer = _thoughtless(answer)
        there = _place_of(answer, window, self._closes)
        if there is None or window[: there.begin] != shape.lead or window[there.close : there.closed] != shape.end:
            return None
        self._cursor, self._dropped = start + there.closed, len(shape.own_lead) > 1
        before = self._text[:start]
        return RenderedTurn(before, before + shape.opening, lead + window[there.begin : there.close] + shape.own_end)

    def _end_of(self, messages: Sequence[Message], start: int) -> int | None:
        """Where the last text of some messages ends, all of which have to be there; None: something is missing."""
        claims = Claims(self._text[start : start + _reach(messages)])
        if any(missing_of_history(message, claims) for message in messages):
            return None
        return start + claims.end


def kind_of(messages: Sequence[Message], following: Sequence[Message]) -> str:
    """Return a key of the properties that a template can depend on: of an answer, its messages and the next role.

    Args:
        messages: from the answer before, if there is one, to the answer.
        following: the next message, if there is one.
    """
    return json.dumps([*map(_shape_of, messages), following[0]["role"] if following else ""])


def _shape_of(message: Mapping[str, Any]) -> list[object]:
    texts = [*texts_of(message["content"]), message.get(_THOUGHT, "")]
    return [
        message["role"],
        sorted(message),
        [[text[: len(text) - len(text.lstrip())], bool(text.strip()), text[len(text.rstrip()) :]] for text in texts],
        any("</think>" in text for text in texts),
        [sorted(call) for call in message.get("tool_calls") or ()],
    ]


def _place_of(message: Message, text: str, closes: re.Pattern[str] | None) -> _Place | None:
    """Where an answer and the token after it are in a text; without a pattern its end is that of its last text."""
    claims = Claims(text)
    if missing_of_answer(message, claims) is not None:
        return None
    close = None if closes is None else closes.search(text, claims.end)
    if closes is not None and close is None:
        return None
    stop, stopped = (claims.end, claims.end) if close is None else close.span()
    return _Place(claims.begin if claims.end else stop, claims.end or stop, stop, stopped)


def _has_user(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def _thoughtless(message: Message) -> Message:
    return {name: value for name, value in message.items() if name not in REASONING}


def _without_thought(message: Message, action: str) -> tuple[Message, tuple[str, ...], str]:
    """An answer without its thought, what is written before the thought, and all that is written after it."""
    lead, thought, rest = action.partition(message[_THOUGHT])
    return _thoughtless(message), (lead,), rest if thought else ""


def _reach(messages: Sequence[Message]) -> int:
    """How many characters messages take at most, as they are usually written."""
    return sum(_AROUND + _ESCAPED * len(json.dumps(message, ensure_ascii=False, default=str)) for message in messages)
