"""Check that a rendered chat contains every text of its messages, without overlaps."""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_core.engine.chat_messages import REASONING, leaves, texts_of

_THOUGHT_ENDS = "</think>"


class Claims:
    """Records which characters of a rendered text belong to which message texts; no two texts overlap.

    Args:
        text: the rendered text.

    Attributes:
        begin: start of the first claim; 0 if there is none.
        end: end of the last claim; 0 if there is none.
        last: end of the latest claim.
    """

    def __init__(self, text: str) -> None:
        self.begin = self.end = self.last = 0
        self._text = text
        self._spans: list[tuple[int, int]] = []

    def take(self, piece: object, floor: int = 0) -> bool:
        """Claim the first free occurrence of a piece from `floor` on; return False if it is missing.

        The piece may occur unchanged, without surrounding spaces, or escaped as JSON. A blank text is always found.
        """
        # The earliest occurrence counts: a text that the template trims may occur untrimmed in a later message.
        occurrences = [
            (at, -len(form)) for form in dict.fromkeys(_forms(piece)) if (at := self._free(form, floor)) >= 0
        ]
        if not occurrences:
            return isinstance(piece, str) and not piece.strip()
        at, length = min(occurrences)
        self.last = at - length
        self.begin = min(self.begin, at) if self._spans else at
        self.end = max(self.end, self.last)
        insort(self._spans, (at, self.last))
        return True

    def take_on(self, piece: str) -> bool:
        """Claim a piece after the latest claim, or otherwise anywhere: messages are usually rendered in order."""
        return self.take(piece, self.last) or self.take(piece)

    def _free(self, form: str, floor: int) -> int:
        at = self._text.find(form, floor)
        while at >= 0 and at < self.end:
            # Claims do not overlap: only the last one that begins before the end of the piece can overlap it.
            number = bisect_right(self._spans, (at + len(form), 0)) - 1
            claimed_end = self._spans[number][1] if number >= 0 else 0
            if claimed_end <= at:
                break
            at = self._text.find(form, claimed_end)
        return at


def missing_of_history(message: Mapping[str, Any], claims: Claims) -> str | None:
    """Return a part of a message that a context lacks, not counting reasoning; None if it lacks nothing else.

    The reasoning of answers may be missing, since many templates strip it from history, also when a model is served.
    The content of an answer with calls may be missing, since some templates treat it as reasoning.
    """
    is_answer, start = message["role"] == "assistant", claims.last
    for text in texts_of(message["content"]):
        plain_text = split_thought(text)[1] if is_answer else text
        if not claims.take_on(plain_text) and not (is_answer and message.get("tool_calls")):
            return f"the content {text!r:.60}"
    return _missing_calls(message, claims, start, anywhere=True)


def missing_of_answer(message: Mapping[str, Any], claims: Claims) -> str | None:
    """Return the part that a rendered answer lacks: content, reasoning, a call's name or argument; None: nothing."""
    texts = [("the reasoning", message.get(REASONING[0], ""))]
    for text in texts_of(message["content"]):
        thought, plain_text = split_thought(text)
        texts += [("the reasoning", thought), ("the content", plain_text)]
    for kind, text in _longest_first(texts):
        if not claims.take(text):
            return f"{kind} {text!r:.60}"
    return _missing_calls(message, claims)


def split_thought(text: str) -> tuple[str, str]:
    """Return the reasoning between think tags at the start of a content, and the rest."""
    thought, _, rest = text.rpartition(_THOUGHT_ENDS)
    return thought.rpartition("<think>")[2], rest


def _missing_calls(message: Mapping[str, Any], claims: Claims, floor: int = 0, *, anywhere: bool = False) -> str | None:
    """Return the missing part of a message's calls, searched from `floor` on, or if allowed `anywhere`."""
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        pieces: list[tuple[str, object]] = [("the name", function["name"])]
        pieces += [("the argument", leaf) for leaf in leaves(function["arguments"])]
        ends = [floor]
        for kind, piece in _longest_first(pieces):
            if not (claims.take(piece, floor) or (anywhere and claims.take(piece))):
                return f"{kind} {piece!r:.60} of call {place}"
            ends.append(claims.last)
        floor = max(ends)
    return None


def _longest_first(pieces: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Sort pieces by length, longest first, so that a short one does not claim a part of a longer one."""
    return sorted(pieces, key=lambda pair: -len(str(pair[1])))


def _forms(piece: object) -> Iterator[str]:
    """Yield the forms in which templates write a piece."""
    if not isinstance(piece, str):
        yield json.dumps(piece, default=str)
        yield str(piece)
        return
    stripped = piece.strip()
    if stripped:
        yield piece
        yield stripped
        yield json.dumps(stripped, ensure_ascii=False)[1:-1]
        yield json.dumps(stripped)[1:-1]
