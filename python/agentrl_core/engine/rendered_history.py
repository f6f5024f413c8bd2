"""A chat rendered once, from which the turns of its answers are cut by their texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentrl_core.engine.chat_messages import REASONING, texts_of
from agentrl_core.engine.chat_texts import Claims, missing_of_answer, missing_of_history

if TYPE_CHECKING:
    from agentrl_core.engine.chat_messages import Message

_THOUGHT = REASONING[0]
# JSON writes a character as six at most; templates add the rest to a message.
_ESCAPED, _AROUND = 6, 2000
_TEXT = r"""(?P<{quote}>['"])(?P<{name}>(?:(?!(?P={quote})).)+)(?P={quote})"""
# A text that is looked for in another one: `'/no_think' in content`, `content.startswith('/')`.
_TESTS = re.compile(
    _TEXT.format(quote="q", name="tested")
    + r"\s+(?:not\s+)?in\b|\.(?:\w*(?:with|split|find|index)|count|partition|replace)\(\s*"
    + _TEXT.format(quote="r", name="given")
)


@dataclass(frozen=True)
class RenderedTurn:
    """The texts of one answer.

    Attributes:
        before: the messages before it, without the opening of the answer.
        context: all that the model reads.
        action: the text that it generates.
        own: where the messages after the answer before begin in `before`, if it was cut out of a history.
    """

    before: str
    context: str
    action: str
    own: int = field(default=0, compare=False)

    @property
    def own_text(self) -> str:
        """The messages after the answer before, the opening and the answer, as they follow each other."""
        return self.before[self.own :] + self.context[len(self.before) :] + self.action

    def is_like(self, alone: RenderedTurn) -> bool:
        """Return whether it is written as in a shorter chat that ends with the same messages."""
        opening, other = self.context[len(self.before) :], alone.context[len(alone.before) :]
        return self.action == alone.action and opening == other and alone.before.endswith(self.before[self.own :])


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
    text is missing, or other characters are between the texts. The caller then renders that answer after all messages
    before it; and it renders each cut one after the messages around it, which shows what a template writes because of a
    content.

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
        own, self._cursor, self._dropped = self._cursor, start + there.closed, len(shape.own_lead) > 1
        before, action = self._text[:start], lead + window[there.begin : there.close] + shape.own_end
        return RenderedTurn(before, before + shape.opening, action, own)

    def _end_of(self, messages: Sequence[Message], start: int) -> int | None:
        """Where the last text of some messages ends, all of which have to be there; None: something is missing."""
        claims = Claims(self._text[start : start + _reach(messages)])
        if any(missing_of_history(message, claims) for message in messages):
            return None
        return start + claims.end


class Markers:
    """The texts that a template looks for in contents, such as `/no_think`, and those that a chat has used so far.

    Args:
        template: the source of the template.
    """

    def __init__(self, template: str) -> None:
        found = [match["tested"] or match["given"] for match in _TESTS.finditer(template)]
        # Words are keys of messages; spaces are in the kind of a message in any case.
        self._texts = sorted({text for text in [*found, "</think>"] if text.strip() and not text.isidentifier()})
        self._used: dict[str, None] = {}

    def kind_of(self, messages: Sequence[Message], following: Sequence[Message], own: Sequence[Message]) -> str:
        """Return a key of the properties that a template can depend on: of an answer, its messages and the next role.

        Args:
            messages: from the answer before, if there is one, to the answer.
            following: the next message, if there is one.
            own: the messages that no earlier call had; the marker that was used last may decide about later answers.
        """
        for message in own:
            for marker in self._in(message):
                self._used.pop(marker, None)
                self._used[marker] = None
        role = following[0]["role"] if following else ""
        return json.dumps([*map(self._shape_of, messages), role, list(self._used)])

    def _in(self, message: Mapping[str, Any]) -> list[str]:
        texts = [*texts_of(message["content"]), message.get(_THOUGHT, "")]
        return [marker for marker in self._texts if any(marker in text for text in texts)]

    def _shape_of(self, message: Mapping[str, Any]) -> list[object]:
        texts = [*texts_of(message["content"]), message.get(_THOUGHT, "")]
        blanks = [(text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]) for text in texts]
        return [
            message["role"],
            sorted(message),
            [[before, bool(text.strip()), after] for text, (before, after) in zip(texts, blanks, strict=True)],
            self._in(message),
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
