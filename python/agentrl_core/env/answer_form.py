"""The form of a model's answers: how reasoning and tool calls are written as text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

Call = dict[str, Any]
Tools = Sequence[Mapping[str, Any]]

ANY_NAME, ANY_ID = "\x00name\x00", "\x00id\x00"
"""Wildcards in the pieces of a form, for the name of a tool and the identifier of a call."""
_WILD = {re.escape(ANY_NAME): r"[\w.\-/]+", re.escape(ANY_ID): r"[^\s<]+"}
_NAME = re.compile(r"\s*([\w.\-/]+)")
_JSON = json.JSONDecoder()


class ParsedAnswer(NamedTuple):
    """An answer divided into reasoning, text and calls.

    `calls` are as in a message: `{"type": "function", "function": {"name": ..., "arguments": {...}}}`. A malformed call
    has the name "", its text as arguments, and an `error` that describes the mistake.
    """

    reasoning: str
    answer: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class CallForm:
    """Format of tool calls: pieces of text around names and arguments. Spaces between words of a piece may differ.

    Args:
        arguments: `object`: one JSON object of name and arguments; `json`: the arguments as JSON after the name;
            `pairs`: names and values of arguments one by one.
        begin: text before the first call: before its object, or before its name.
        between: text between two calls.
        end: text after the last call.
        keys: keys of the name and of the arguments in an object.
        after_name: text before the arguments, or before the name of the first one.
        after_key: text between name and value of an argument.
        next_key: text between a value and the name of the next argument.
        quote: text around values that are texts.
        no_arguments: `between` and `end` after a call without arguments.
    """

    arguments: Literal["object", "json", "pairs"]
    begin: str
    between: str
    end: str
    keys: tuple[str, str] = ("name", "arguments")
    after_name: str = ""
    after_key: str = ""
    next_key: str = ""
    quote: str = ""
    no_arguments: tuple[str, str] = ("", "")

    def calls_in(self, text: str, tools: Tools = ()) -> tuple[str, list[Call]]:
        """Return a text without its calls, and the parsed calls."""
        calls: list[Call] = []
        rest: list[str] = []
        place = 0
        while (opened := self._opened(text, place)) is not None:
            try:
                end = self._read(text, opened, tools, calls)
            except ValueError:  # the form has no `begin`, and the text is not a call
                break
            rest.append(text[place : opened[0]])
            place = end
        rest.append(text[place:])
        return "".join(rest), calls

    def _opened(self, text: str, place: int) -> tuple[int, int] | None:
        """Return where the next series of calls begins, and where its first call begins; None if there is none."""
        if self.begin.strip():
            return _found(self.begin, text, place)
        # Without a text that begins calls, the whole answer must be one.
        is_whole_call = (
            not text[:place].strip() and text[place:].lstrip().startswith("{") and self.arguments == "object"
        )
        return (place, place) if is_whole_call and place < len(text) else None

    def _read(self, text: str, opened: tuple[int, int], tools: Tools, calls: list[Call]) -> int:
        """Append a series of calls to `calls`; return the end of the last one.

        Raises:
            ValueError: the form has no `begin`, and the text is not a call.
        """
        begin, place = opened
        while True:
            try:
                name, arguments, place = self._call(text, place, tools)
            except ValueError:
                if not self.begin.strip():
                    raise
                stop = _found(self.end, text, place) if self.end.strip() else None
                error = self._wrong if stop else self._open
                calls.append(_malformed(text[begin : stop[1] if stop else len(text)], error))
                return stop[1] if stop else len(text)
            between, end = self._ends(arguments)
            following = _lenient(between).match(text, place) if between.strip() else None
            last = _lenient(end).match(text, place)
            # The end of a call may begin like the text between two calls.
            if self.arguments == "object" and not between.strip() and text[place:].lstrip().startswith("{"):
                following = _lenient("").match(text, place)
            if following and (last is None or following.end() >= last.end()):
                calls.append(_call_of(name, arguments))
                begin, place = place, following.end()
                continue
            if last is None:
                calls.append(_malformed(text[begin:], self._open))
                return len(text)
            calls.append(_call_of(name, arguments))
            return last.end()

    def _ends(self, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Return the texts that may follow a call: the one before another call, and the one after the last call."""
        if self.arguments == "pairs" and not arguments:
            return self.no_arguments
        return self.between, self.end

    @property
    def _open(self) -> str:
        return f"a {self.begin.split()[0]} is not closed by {(self.end.split() or ['its end'])[-1]}"

    @property
    def _wrong(self) -> str:
        if self.arguments == "object":
            return f'a call is JSON: {{"{self.keys[0]}": a tool, "{self.keys[1]}": {{an object}}}}'
        return "a call is not in the form that the chat template shows"

    def _call(self, text: str, place: int, tools: Tools) -> tuple[str, dict[str, Any], int]:
        """Return the name and the arguments of a call, and its end.

        Raises:
            ValueError: the call is malformed.
        """
        if self.arguments == "object":
            parsed, place = _object(text, place)
            name, arguments = parsed.get(self.keys[0]), parsed.get(self.keys[1], {})
            if arguments is None:
                arguments = {}
            elif isinstance(arguments, str):
                arguments = json.loads(arguments)
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise ValueError("no name, or arguments that are not an object")
            return name, arguments, place
        name_match = _NAME.match(text, place)
        if name_match is None:
            raise ValueError("no name")
        name, place = name_match[1], name_match.end()
        if self.arguments == "pairs" and any(
            _lenient(end).match(text, place) for end in self.no_arguments if end.strip()
        ):
            return name, {}, place
        header_match = _lenient(self.after_name).match(text, place)
        if self.arguments == "json":
            # gpt-oss orders its headers differently from its template.
            header_match = header_match or re.compile(
                rf"[^{{}}]*?{re.escape(self.after_name.rpartition('<')[2].strip())}"
            ).match(text, place)
            if header_match is None:
                raise ValueError("no arguments")
            arguments, place = _object(text, header_match.end())
            return name, arguments, place
        if header_match is None:
            raise ValueError("no arguments")
        return name, *self._pairs(text, header_match.end(), _types(name, tools))

    def _pairs(self, text: str, place: int, types: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Return arguments that are written one by one, and the end of the last value."""
        arguments: dict[str, Any] = {}
        while True:
            split = _found(self.after_key.rstrip(), text, place)
            if split is None:
                raise ValueError("an argument without a value")
            key, place = text[place : split[0]].strip(), split[1]
            tail = self.after_key[len(self.after_key.rstrip()) :]
            place += len(tail) if text.startswith(tail, place) else 0
            value, place = self._value(text, place, types.get(key))
            arguments[key] = value
            following = _lenient(self.next_key).match(text, place) if self.next_key.strip() else None
            if following is None:
                return arguments, place
            place = following.end()

    def _value(self, text: str, place: int, kind: Any) -> tuple[Any, int]:
        if self.quote and text.startswith(self.quote, place):
            if len(self.quote) == 1:  # as Python writes it
                literal = re.compile(rf"{self.quote}(?:\\.|[^\\{self.quote}])*{self.quote}", re.DOTALL).match(
                    text, place
                )
                if literal is None:
                    raise ValueError("a text is not closed")
                try:
                    return ast.literal_eval(literal[0].replace("\n", "\\n")), literal.end()
                except SyntaxError:  # an escape that Python does not know
                    return literal[0][1:-1], literal.end()
            end = text.find(self.quote, place + len(self.quote))
            if end < 0:
                raise ValueError("a text is not closed")
            return text[place + len(self.quote) : end], end + len(self.quote)
        stops = [_found(piece, text, place) for piece in (self.next_key, self.between, self.end) if piece.strip()]
        start = min((stop[0] for stop in stops if stop), default=None)
        if start is None:
            raise ValueError("a value is not closed")
        spaces = text[start : len(text) - len(text[start:].lstrip())]
        lead = self.end[: len(self.end) - len(self.end.lstrip())]
        end = start + (len(spaces) - len(lead) if spaces.endswith(lead) else 0)
        return _typed(text[place:end], kind, quoted=bool(self.quote)), end


HERMES = CallForm("object", "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")
"""The form of calls for models whose chat template does not render tools."""


@dataclass(frozen=True)
class AnswerForm:
    """Format of a model's reasoning, answer and calls; that of a chat template is `engine.Chat.answer_form`.

    Args:
        thought_begin: text that begins the reasoning.
        thought_end: text that ends the reasoning.
        opened: whether the prompt opens the reasoning, so that the answer begins within it.
        answer_begin: text before an answer without reasoning.
        shows_thoughts: whether the chat template renders reasoning given as a separate field.
        calls: the form of calls; None: there are none.

    Example:
        >>> from agentrl_core.env.answer_form import AnswerForm
        >>> text = '<think>I add.</think>Let me see.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        >>> parsed = AnswerForm().parse(text)
        >>> parsed.reasoning, parsed.answer, parsed.calls[0]["function"]
        ('I add.', 'Let me see.', {'name': 'add', 'arguments': {'a': 1}})
    """

    thought_begin: str = "<think>"
    thought_end: str = "</think>"
    opened: bool = False
    answer_begin: str = ""
    shows_thoughts: bool = False
    calls: CallForm | None = HERMES

    def parse(self, text: str, tools: Tools = ()) -> ParsedAnswer:
        """Divide an answer into reasoning, text and calls.

        Args:
            text: the text of the model, without its stop token.
            tools: JSON schemas of the tools, which give the types of arguments that a form writes without quotes.
        """
        if not any(mark in text for mark in self._marks) and not self.opened:
            return ParsedAnswer("", text, ())
        reasoning, rest = self._thought(text)
        rest, calls = self.calls.calls_in(rest, tools) if self.calls is not None else (rest, [])
        if rest.lstrip().startswith(self._answer_begin) and self._answer_begin:
            rest = rest.lstrip().removeprefix(self._answer_begin)
        elif calls and self._answer_begin:  # the header of a call instead of an answer's
            rest = rest.partition(self._answer_begin.partition(">")[0])[0]
        unchanged = rest == text
        return ParsedAnswer(reasoning, rest if unchanged else rest.strip(), tuple(calls))

    @cached_property
    def _answer_begin(self) -> str:
        return self.answer_begin.strip()

    @cached_property
    def _marks(self) -> tuple[str, ...]:
        """Texts of which one must occur in an answer that has reasoning or calls."""
        call = (
            ""
            if self.calls is None
            else (self.calls.begin.replace(ANY_NAME, " ").replace(ANY_ID, " ").split() or "{")[0]
        )
        marks = (self.thought_begin.strip(), self.thought_end.strip(), self._answer_begin, call)
        return tuple(mark.split()[0] for mark in marks if mark)

    def _thought(self, text: str) -> tuple[str, str]:
        """Return the reasoning at the start of a text, and the rest."""
        begin = _lenient(self.thought_begin).match(text) if self.thought_begin.strip() else None
        start = begin.end() if begin else 0
        end = _found(self.thought_end, text, start) if self.thought_end.strip() else None
        if end is None:
            inside = begin is not None or (self.opened and not self._calls_at_once(text))
            return (text[start:].strip(), "") if inside else ("", text)
        if begin is None and not self.opened and "</" not in self.thought_end:
            return "", text
        return text[start : end[0]].strip(), text[end[1] :]

    def _calls_at_once(self, text: str) -> bool:
        return (
            self.calls is not None and bool(self.calls.begin.strip()) and bool(_lenient(self.calls.begin).match(text))
        )


def _found(piece: str, text: str, place: int) -> tuple[int, int] | None:
    """Return begin and end of the next occurrence of a piece of a form, with spaces before it; None without any."""
    # Leading spaces of the piece would make the search quadratic in a long run of spaces.
    found = _lenient(piece.lstrip(), inner=True).search(text, place)
    if found is None:
        return None
    start = found.start()
    while start > place and text[start - 1].isspace():
        start -= 1
    return start, found.end()


@lru_cache(maxsize=1024)
def _lenient(piece: str, *, inner: bool = False) -> re.Pattern[str]:
    """Return a pattern that matches a piece of a form with any spaces around and within it."""
    words = [re.escape(word) for word in piece.split()]
    pattern = r"\s*" * (not inner) + r"\s*".join(words) + (r"\s*" if piece[-1:].isspace() else "")
    for mark, wild in _WILD.items():
        pattern = pattern.replace(mark, wild)
    return re.compile(pattern)


def _object(text: str, place: int) -> tuple[dict[str, Any], int]:
    while place < len(text) and text[place].isspace():
        place += 1
    try:
        value, end = _JSON.raw_decode(text, place)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 -- all errors of a text are of one type
    return value, end


def _types(name: str, tools: Tools) -> Mapping[str, Any]:
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: schema.get("type") for key, schema in properties.items() if isinstance(schema, Mapping)}
    return {}


def _typed(text: str, kind: Any, *, quoted: bool) -> Any:
    """Return the value of an argument that is written without quotes, by its type in the schema."""
    if kind == "string" and not quoted:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _call_of(name: str, arguments: dict[str, Any]) -> Call:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _malformed(text: str, error: str) -> Call:
    return {"type": "function", "function": {"name": "", "arguments": text}, "error": error}
