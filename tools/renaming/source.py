"""The text of a program, and edits to it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_core.renames import hint, is_removed

LITERAL = re.compile(rb"[A-Za-z]{0,2}('''|\"\"\"|'|\")")


@dataclass(frozen=True)
class Edit:
    """Bytes of the source to replace, and their replacement."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True)
class Problem:
    """A line to change by hand."""

    line: int
    text: str


class Source:
    """The bytes of a program with edits of names in it.

    Args:
        content: the program, as UTF-8.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.edits: dict[tuple[int, int], Edit] = {}
        self.problems: list[Problem] = []
        self.lines = [0, *(found.end() for found in re.finditer(b"\n", content))]

    def edit(self, begin: int, end: int, text: str) -> None:
        """Replace some bytes by a text."""
        if self.content[begin:end] != text.encode():
            self.edits[begin, end] = Edit(begin, end, text)

    def at(self, line: int, column: int) -> int:
        """Return the byte at a line and column of the syntax tree."""
        return self.lines[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        """Return the first byte of a node, and the one after its last."""
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def replace(self, begin: int, old: str, new: str) -> None:
        """Replace an old name by a new one."""
        end = begin + len(old.encode())
        if old == new:
            return
        if self.content[begin:end] != old.encode():
            self.problem(begin, f"{old}: is {new} now; change it by hand")
        else:
            self.edit(begin, end, new)

    def problem(self, begin: int, text: str) -> None:
        """Note a line to change by hand."""
        problem = Problem(self.content.count(b"\n", 0, begin) + 1, text)
        if problem not in self.problems:
            self.problems.append(problem)

    def rename(self, begin: int, old: str, new: str | None) -> None:
        """Edit a name that is in a table."""
        if new is not None and is_removed(new):
            self.problem(begin, f"{old}: removed{'; ' if hint(new) else ''}{hint(new)}")
        elif new is not None:
            self.replace(begin, old, new)

    def attribute(self, node: ast.Attribute, new: str | None) -> None:
        """Edit the last part of a dotted name."""
        self.rename(self.span(node)[1] - len(node.attr.encode()), node.attr, new)

    def text(self, node: ast.expr | None, new: Callable[[str], str | None]) -> None:
        """Edit a string literal without concatenation."""
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            return
        text = new(node.value)
        if text is None or text == node.value:
            return
        begin, end = self.span(node)
        opening = LITERAL.match(self.content, begin, end)
        if opening and self.content[opening.end() : end - len(opening[1])] == node.value.encode():
            self.replace(opening.end(), node.value, text)

    def tuple(self, node: ast.Constant, items: Sequence[Any]) -> None:
        """Replace a string literal by the tuple of its items, with the quotes of the literal."""
        begin, end = self.span(node)
        opening = LITERAL.match(self.content, begin, end)
        if opening is None:
            self.problem(begin, f"{node.value!r}: is a tuple now; change it by hand")
        else:
            self.edit(begin, end, _as_tuple(items, opening[1][:1] == b"'"))

    def inner(self, node: ast.Constant) -> int | None:
        """Return the first byte of a string's content; None unless the source contains it literally."""
        begin, end = self.span(node)
        opening = LITERAL.match(self.content, begin, end)
        if opening is None or self.content[opening.end() : end - len(opening[1])] != node.value.encode():
            return None
        return opening.end()


def _as_tuple(items: Sequence[Any], is_single: bool) -> str:  # noqa: FBT001 - the quotes
    def written(item: Any) -> str:
        if isinstance(item, list):
            return _as_tuple(item, is_single)
        return json.dumps(item, ensure_ascii=False) if isinstance(item, str) and not is_single else repr(item)

    return f"({', '.join(map(written, items))}{',' if len(items) == 1 else ''})"
