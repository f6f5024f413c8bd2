"""A calculator on integers with a parser of its own: nothing is ever handed to Python's `eval`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core.env.base import ToolReply
from agentrl_core.exceptions import InvalidInputError

_MAX_DEPTH = 12
_TOKEN = re.compile(r"\s*(?:([0-9]+)|(lcm|gcd)(?![A-Za-z0-9_])|(//|[-+*/(),]))")
_FUNCTIONS: dict[str, Callable[..., int]] = {"lcm": math.lcm, "gcd": math.gcd}


class _RefusedError(Exception):
    """Raised for a text that cannot be evaluated; its message is the reply. It never leaves this module."""


@dataclass(frozen=True)
class Calculator:
    """Tool that evaluates `+ - * / // ( )`, unary minus, `lcm(...)` and `gcd(...)` on integers.

    Grammar (ASCII digits, spaces anywhere between tokens):

        sum     = product { ("+" | "-") product }
        product = factor { ("*" | "/" | "//") factor }
        factor  = { "-" } ( digits | "(" sum ")" | ("lcm" | "gcd") "(" sum { "," sum } ")" )

    `//` is the floor division of Python. `/` is exact: a remainder is an error, so that the result is always an integer
    (`2842`, never `2842.0`). Intermediate values are not limited, only the printed result is.

    Args:
        max_length: longest accepted text, in characters.
        max_digits: longest printed result, in characters, including the sign.

    Every failure is a short text with `error=True`, never an exception: `too long`, `too large`, `too deep` (more than
    11 brackets inside each other), `syntax error`, `division by zero`, `not an integer`.

    Example:
        >>> Calculator()("73+15+43")
        ToolReply(text='131', error=False)
        >>> Calculator()("lcm(7, 35)*-2").text
        '-70'
        >>> Calculator()("7/2")
        ToolReply(text='not an integer', error=True)
    """

    runs: ClassVar = "inline"
    description: ClassVar = "Works out + - * / // ( ), lcm(...) and gcd(...) on integers."
    argument: ClassVar = "expression"

    max_length: int = 40
    max_digits: int = 8

    def __post_init__(self) -> None:
        for name in ("max_length", "max_digits"):
            value = getattr(self, name)
            # 4 000 keeps every intermediate value below Python's own limit for printing an integer (4 300 digits).
            if not 1 <= value <= 4000:
                raise InvalidInputError(f"Calculator: {name} is {value}; give an integer from 1 to 4000")

    @property
    def name(self) -> str:
        """The tool's name: `calculator`."""
        return "calculator"

    def __call__(self, text: str) -> ToolReply:
        """Evaluate the expression `text`; see the class."""
        if len(text) > self.max_length:
            return ToolReply("too long", error=True)
        try:
            result = str(_Parser(_tokens(text)).parse())
        except _RefusedError as refused:
            return ToolReply(str(refused), error=True)
        if len(result) > self.max_digits:
            return ToolReply("too large", error=True)
        return ToolReply(result, error=False)


def _tokens(text: str) -> list[str]:
    tokens = []
    text = text.rstrip()
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _RefusedError("syntax error")
        tokens.append(match.group(match.lastindex or 0))
        position = match.end()
    return tokens


class _Parser:
    """Recursive-descent parser; the depth limit bounds the recursion."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def parse(self) -> int:
        value = self._sum()
        if self._next != len(self._tokens):
            raise _RefusedError("syntax error")
        return value

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if token and token in wanted:
            self._next += 1
            return token
        return ""

    def _sum(self) -> int:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _RefusedError("too deep")
        value = self._product()
        while operator := self._take("+", "-"):
            right = self._product()
            value = value + right if operator == "+" else value - right
        self._depth -= 1
        return value

    def _product(self) -> int:
        value = self._factor()
        while operator := self._take("*", "/", "//"):
            right = self._factor()
            if operator == "*":
                value *= right
                continue
            if right == 0:
                raise _RefusedError("division by zero")
            value, remainder = divmod(value, right)
            if operator == "/" and remainder:
                raise _RefusedError("not an integer")
        return value

    def _factor(self) -> int:
        sign = 1
        while self._take("-"):
            sign = -sign
        token = self._peek()
        if token.isdigit():
            self._next += 1
            return sign * int(token)
        function = self._take(*_FUNCTIONS)
        if not self._take("("):
            raise _RefusedError("syntax error")
        values = [self._sum()]
        while function and self._take(","):
            values.append(self._sum())
        if not self._take(")"):
            raise _RefusedError("syntax error")
        return sign * (_FUNCTIONS[function](*values) if function else values[0])
