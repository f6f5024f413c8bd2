"""A chat rendered once, out of which the turns of its answers are cut."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentrl_core.engine.chat_messages import REASONING, texts_of
from agentrl_core.engine.rendered_text_check import Claims, missing_of_answer, missing_of_history

if TYPE_CHECKING:
    from agentrl_core.engine.chat_messages import Message

_THOUGHT = REASONING[0]
# JSON writes a character as at most six; and an allowance for the characters that templates add to a message.
_ESCAPED, _AROUND = 6, 2000
_TEXT = r"""(?P<{quote}>['"])(?P<{name}>(?:(?!(?P={quote})).)+)(?P={quote})"""
# A test for a text in a template's source: `'/no_think' in content`, `content.startswith('/')`.
_TESTS = re.compile(
    _TEXT.format(quote="q", name="tested")
    + r"\s+(?:not\s+)?in\b|\.(?:\w*(?:with|split|find|index)|count|partition|replace)\(\s*"
    + _TEXT.format(quote="r", name="given")
)


@dataclass(frozen=True)
class RenderedTurn:
    """The rendered texts of one answer: the messages before it, its context, and the generated text.

    Attributes:
        before: the messages before the answer, without the opening of the answer.
        context: all text that the model reads, `before` and the opening.
        action: the text that the model generates.
        own: index in `before` at which the previous answer ends, if the turn was cut out of a history.
    """

    before: str
    context: str
    action: str
    own: int = field(default=0, compare=False)

    @property
    def own_text(self) -> str:
        """The text after the previous answer: the messages that follow it, the opening, and this answer."""
        return self.before[self.own :] + self.context[len(self.before) :] + self.action

    def is_like(self, alone: RenderedTurn) -> bool:
        """Return whether the turn equals `alone`, which was rendered in a shorter chat with the same last messages."""
        opening, other = self.context[len(self.before) :], alone.context[len(alone.before) :]
        return self.action == alone.action and opening == other and alone.before.endswith(self.before[self.own :])


@dataclass(frozen=True)
class _Shape:
    """The texts around answers of one kind: in the history, and in a turn that is rendered on its own."""

    before: str
    """Text between the last message's text and the opening of the answer."""
    opening: str
    """The opening of the answer, up to the end of the context."""
    lead: str
    """Text in the history between `before` and the first text of the answer."""
    own_lead: tuple[str, ...]
    """Text that the model generates before the answer's first text; two pieces around the reasoning if the history
    drops it."""
    end: str
    """The token that ends the turn in the history."""
    own_end: str
    """The token that ends the turn when it is generated."""


@dataclass(frozen=True)
class _Place:
    """Position of an answer in a text: begin and end of its own texts, and of the token that ends it."""

    begin: int
    end: int
    close: int
    closed: int


class RenderedHistory:
    """A rendered chat out of which answers are cut, after the first answer of each kind has shown how it is written.

    The first answer of a kind is rendered on its own, as the model reads and writes it, and `add_turn` compares it with
    the history. `turn` then cuts later answers of that kind out of the history. It returns None if anything differs: a
    text is missing, or other characters are between the texts. The caller then renders that answer after all messages
    before it. It also checks each cut answer by rendering it after the messages around it, in case the template
    depends on the content.

    Args:
        text: the rendered chat; empty if the template refuses it.
        closes: pattern of the token that ends an answer in the middle of a chat.
    """

    def __init__(self, text: str, closes: re.Pattern[str]) -> None:
        self._text, self._closes = text, closes
        self._shapes: dict[str, _Shape] = {}
        self._cursor: int | None = 0
        """End of the last answer in the text; None: the history writes it differently."""
        self._dropped = False
        """Whether the history drops reasoning since the last user message. Templates do so once there is a later user
        message; the answers in between were generated with the reasoning in context, so they are not cut."""

    def add_turn(self, kind: str, messages: Sequence[Message], turn: RenderedTurn) -> None:
        """Compare the history with an answer rendered on its own; if they agree, store the texts around its kind.

        Args:
            kind: kind of the answer and of the messages around it; see `Markers.kind_of`.
            messages: the messages after the previous answer, ending with this answer.
            turn: the answer's turn as rendered on its own.
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
        in_action = _place_of(answer, action, None)
        if there is None or in_action is None:
            return
        self._cursor = start + there.closed
        self._dropped |= bool(pieces)
        between, tail = window[there.end : there.close], action[in_action.end :]
        last = None if cursor is None else self._end_of(messages[:-1], cursor)
        same = window[there.begin : there.end] == action[in_action.begin : in_action.end]
        if last is None or last > start or not same or not tail.startswith(between):
            return
        self._shapes[kind] = _Shape(
            before=self._text[last:start],
            opening=turn.context[start:],
            lead=window[: there.begin],
            own_lead=(*pieces, action[: in_action.begin]),
            end=window[there.close : there.closed],
            own_end=tail[len(between) :],
        )

    def turn(self, kind: str, messages: Sequence[Message]) -> RenderedTurn | None:
        """Return the turn of an answer, cut out of the history; None if it must be rendered on its own."""
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
        previous_end, self._cursor, self._dropped = self._cursor, start + there.closed, len(shape.own_lead) > 1
        before, action = self._text[:start], lead + window[there.begin : there.close] + shape.own_end
        return RenderedTurn(before, before + shape.opening, action, previous_end)

    def _end_of(self, messages: Sequence[Message], start: int) -> int | None:
        """Return the end of the last text of some messages; None if one of their texts is missing."""
        claims = Claims(self._text[start : start + _reach(messages)])
        if any(missing_of_history(message, claims) for message in messages):
            return None
        return start + claims.end


class Markers:
    """The texts that a template tests contents for, such as `/no_think`, and those that a chat has used so far.

    Args:
        template: the source of the template.
    """

    def __init__(self, template: str) -> None:
        literals = [match["tested"] or match["given"] for match in _TESTS.finditer(template)]
        # Words are keys of messages; spaces are in the kind of a message in any case.
        self._texts = sorted({text for text in [*literals, "</think>"] if text.strip() and not text.isidentifier()})
        self._used: dict[str, None] = {}

    def kind_of(self, messages: Sequence[Message], following: Sequence[Message], own: Sequence[Message]) -> str:
        """Return a key of the properties of an answer and its neighbours that a template can depend on.

        Args:
            messages: the messages from the previous answer, if there is one, to the answer.
            following: the next message, if there is one.
            own: the messages that were in no earlier call; the latest marker may affect later answers.
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
    """Return where an answer and its end token (`closes`) are in a text; None if either is missing."""
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
    """Return an answer without its reasoning, and the generated text before and after the reasoning."""
    lead, thought, rest = action.partition(message[_THOUGHT])
    return _thoughtless(message), (lead,), rest if thought else ""


def _reach(messages: Sequence[Message]) -> int:
    """Return an upper bound of the characters that messages take when rendered."""
    return sum(_AROUND + _ESCAPED * len(json.dumps(message, ensure_ascii=False, default=str)) for message in messages)
