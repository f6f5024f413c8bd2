"""Spans: runs of tokens inside actions, such as thoughts, calls or items of a list, found by tags or by a parser."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_Indices = NDArray[np.int64]


class Spans(ABC):
    """Base class of span finders: `arl.annotate(batch, column, spans)` numbers spans of tokens in a token column.

    The column numbers the spans of each draw from 1, and is 0 at tokens outside of spans. So it marks tokens
    (`weight.MarkedScaled`, `advantage.EntropyBonus`), and groups them (`loss.Ratio("item")`). A span lies within one
    action; a span without tokens gets no number.
    """

    @abstractmethod
    def find(self, tokens: NDArray[np.int32], offsets: _Indices) -> tuple[_Indices, _Indices]:
        """Return the start and the end of each span in `tokens`, in order and without overlap.

        Args:
            tokens: of all actions, one after the other.
            offsets: n + 1 whole numbers: action i is `tokens[offsets[i]:offsets[i + 1]]`.
        """

    def numbered(self, batch: Batch) -> NDArray[np.float32]:
        """Return the number of each action token's span in its draw, from 1; 0 if the token is in no span."""
        tokens, offsets = np.asarray(batch.column("token", "token"), np.int32), batch.offsets("token")
        begins, ends = self.find(tokens, offsets)
        begins, ends = begins[ends > begins], ends[ends > begins]
        of_draws = offsets[batch.offsets("step")]
        first = np.searchsorted(begins, of_draws)  # the first span of each draw
        numbers = np.arange(len(begins)) - first[np.searchsorted(of_draws, begins, side="right") - 1] + 1
        numbers_of_tokens = np.zeros(len(tokens), np.float32)
        lengths = ends - begins
        inside = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        numbers_of_tokens[inside] = np.repeat(numbers, lengths)
        return numbers_of_tokens


class Tags(Spans):
    """Spans between an opening and a closing tag, as token ids: `<think>` ... `</think>`.

    A span begins at the first opening tag of an action, or at the first one after the previous span, and ends with the
    next closing tag; an opening tag inside belongs to it. A span that is never closed extends to the end of its action.
    If a tokenizer can encode a tag in several ways, find it in the text instead, by `Parsed`.

    Args:
        opening: token ids of the opening tag, at least one.
        closing: token ids of the closing tag, at least one.
        tags: whether the tags belong to their span.
        begun: whether every action begins inside a span, because the prompt ends with the opening tag, as in many chat
            templates.

    Raises:
        InvalidInputError: a tag has no token, or a negative one.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.model.spans import Tags
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> path = forest.start(0, member=0)
        >>> _ = forest.append(path, [1], kind="prompt")
        >>> _ = forest.append(path, [8, 3, 9, 4, 8, 5], kind="action", logprobs=[-1.0] * 6)
        >>> forest.finish(path, reward=1.0)
        >>> batch = arl.annotate(forest.freeze(), "thought", Tags([8], [9]))
        >>> batch.column("thought", "token").tolist()
        [1.0, 1.0, 1.0, 0.0, 2.0, 2.0]
    """

    def __init__(self, opening: ArrayLike, closing: ArrayLike, *, tags: bool = True, begun: bool = False) -> None:
        self.opening, self.closing = _tag(opening, "opening"), _tag(closing, "closing")
        self.tags, self.begun = tags, begun

    def find(self, tokens: NDArray[np.int32], offsets: _Indices) -> tuple[_Indices, _Indices]:
        """Return the start and the end of each span; vectorised over actions: all first spans, all second ones, ..."""
        ends = offsets[1:]
        opened, closed = _occurrences(tokens, self.opening), _occurrences(tokens, self.closing)
        parts = [np.zeros((3, 0), np.int64)]
        rows, position = np.arange(len(ends)), offsets[:-1].copy()
        is_open = self.begun
        while len(rows):
            tag = 0 if is_open else len(self.opening)
            begin = position[rows] if is_open else _next(opened, position[rows])
            fits = begin + max(tag, 1) <= ends[rows]
            rows, begin, is_open = rows[fits], begin[fits], False
            close = _next(closed, begin + tag)
            is_closed = close + len(self.closing) <= ends[rows]
            position[rows] = np.where(is_closed, close + len(self.closing), ends[rows])
            inside = (begin + tag, np.where(is_closed, close, ends[rows]))
            parts.append(np.stack([begin, *((begin, position[rows]) if self.tags else inside)]))
        spans = np.concatenate(parts, axis=1)
        _, begins, ends = spans[:, spans[0].argsort()]
        return begins, ends


class Parsed(Spans):
    r"""Spans that a user's function finds in the text of an action: items of a list, the arguments of a call.

    A token belongs to a span if one of its characters does. A token that ends inside a character (half of its bytes)
    counts with the text that the tokenizer decodes for it. An action is decoded about log2(its tokens) times for each
    bound of a span, and only once if several branches share it.

    Args:
        parser: function from the text of an action to its spans `(begin, end)`, character positions from 0, in order.
        decode: function from token ids to text, such as `engine.decode` or that of a tokenizer.

    Raises:
        InvalidInputError: `parser` or `decode` is not a function.

    Example:
        >>> import re
        >>> import numpy as np
        >>> from agentrl_core.model.spans import Parsed
        >>> def items(text):
        ...     return [match.span() for match in re.finditer(r"- .*", text)]
        >>> spans = Parsed(items, lambda tokens: bytes(tokens).decode())  # here a token is a letter
        >>> begins, ends = spans.find(np.array([*b"List:\n- a\n- bc"], np.int32), np.array([0, 14]))
        >>> begins.tolist(), ends.tolist()
        ([6, 10], [9, 14])
    """

    def __init__(self, parser: Callable[[str], Iterable[tuple[int, int]]], decode: Callable[[list[int]], str]) -> None:
        for name, function, form in (
            ("parser", parser, "from a text to its spans (begin, end)"),
            ("decode", decode, "from token ids to a text"),
        ):
            if not callable(function):
                raise InvalidInputError(f"{name} is {function!r}; give a function {form}")
        self.parser, self.decode = parser, decode

    def find(self, tokens: NDArray[np.int32], offsets: _Indices) -> tuple[_Indices, _Indices]:
        """Return the start and the end of each span, action by action."""
        known: dict[bytes, _Indices] = {}
        parts = [np.zeros((0, 2), np.int64)]
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            action = tokens[begin:end]
            key = action.tobytes()
            if key not in known:
                known[key] = self._spans(action.tolist())
            parts.append(known[key] + begin)
        spans = np.concatenate(parts)
        return spans[:, 0], spans[:, 1]

    def _spans(self, tokens: list[int]) -> _Indices:
        """Return the spans of one action as token positions, `[spans, 2]`."""
        text = self.decode(tokens)
        lengths = {0: 0, len(tokens): len(text)}

        def length(count: int) -> int:
            if count not in lengths:
                lengths[count] = len(self.decode(tokens[:count]))
            return lengths[count]

        spans: list[tuple[int, int]] = []
        last = 0
        for span in self.parser(text):
            begin, end = span
            if not last <= begin <= end <= len(text):
                raise InvalidInputError(
                    f"parser returned the span {span!r} of the text {text!r:.60}, but its next span must lie between "
                    f"{last} and {len(text)}; return spans (begin, end) with begin <= end, in order, without overlap"
                )
            last = end
            first = bisect.bisect_right(range(len(tokens) + 1), begin, key=length) - 1
            beyond = bisect.bisect_left(range(len(tokens) + 1), end, key=length)
            first = max(first, spans[-1][1] if spans else 0)  # a token that two spans share is the first one's
            spans.append((first, max(first, beyond)))
        return np.array(spans, np.int64).reshape(-1, 2)


def _tag(ids: ArrayLike, name: str) -> _Indices:
    """Check the token ids of a tag, and return them."""
    tag = columns.integers(ids, name)
    if not len(tag) or tag.min() < 0:
        raise InvalidInputError(f"{name} is {tag.tolist()}; give the token ids of a tag, at least one, none negative")
    return tag


def _occurrences(tokens: NDArray[np.int32], tag: _Indices) -> _Indices:
    """Return the positions at which a tag begins in the tokens."""
    places = max(len(tokens) - len(tag) + 1, 0)
    matches = np.ones(places, np.bool_)
    for number, token in enumerate(tag.tolist()):
        matches &= tokens[number : number + places] == token
    return np.flatnonzero(matches)


def _next(places: _Indices, at: _Indices) -> _Indices:
    """Return, for each position, the first of sorted positions at or after it; a huge number if there is none."""
    beyond = np.append(places, np.iinfo(np.int64).max // 2)
    return beyond[np.searchsorted(places, at)]
