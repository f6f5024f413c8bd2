"""Edit the names of metrics and columns in strings that a program uses as keys."""

from __future__ import annotations

import ast
from typing import Any

from agentrl_core.renames import Renames, is_removed
from renaming.kinds import At, Member
from renaming.source import Source

_LOOKUPS = {"get", "pop", "setdefault"}
_COLUMN_CALLS = {"annotate", "col", "column", "column_name", "draw", "has", "is_in", "keys", "starts_with", "step"}
_COLUMN_CALLS |= {"texts", "token", "with_columns"}


class Metrics:
    """The strings of a program that name a metric or a column.

    Args:
        source: the program.
        renames: old and new names.
    """

    def __init__(self, source: Source, renames: Renames) -> None:
        self._source, self._renames = source, renames

    def subscripts(self, node: ast.Subscript) -> None:
        """Edit the names of metrics and columns: `metrics["a.b"]` and `metrics["a"]["b"]`."""
        inner, keys = node.value, [node.slice]
        while isinstance(inner, ast.Subscript):
            keys.insert(0, inner.slice)
            inner = inner.value
        texts = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        of_metrics = _is_metrics(inner)
        if len(texts) == len(keys) > 1:
            new = self._renames.metric(".".join(texts)).split(".")
            if len(new) == len(keys):
                for key, name in zip(keys, new, strict=True):
                    self._source.text(key, lambda _, name=name: name)
        self.name(node.slice, everywhere=of_metrics and len(keys) == 1)

    def name(self, node: ast.expr | None, *, everywhere: bool = False) -> None:
        """Edit a string that names a metric or column; edit a single word only if it cannot be anything else."""

        def new(text: str) -> str | None:
            if not everywhere and "." not in text:
                return None
            renames = self._renames
            new_name = renames.sections["metrics"].get(text, text)
            if is_removed(new_name) and text:
                self._source.rename(self._source.span(node)[0], text, new_name)
                return None
            if (renamed := renames.metric(text)) != text or (renamed := renames.column(text)) != text:
                return renamed
            table = renames.metric(f"{text}.") if everywhere else ""
            return table[:-1] if table.endswith(".") else None

        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            for each in node.elts:
                self.name(each, everywhere=everywhere)
        self._source.text(node, new)

    def call(self, node: ast.Call, known: Any) -> None:
        """Edit the names of metrics and columns among the arguments."""
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _LOOKUPS and node.args and isinstance(node.func, ast.Attribute):
            self.name(node.args[0], everywhere=_is_metrics(node.func.value))
        if called in _COLUMN_CALLS:
            of_package = isinstance(known, (Member, At)) or called in ("col", "column")
            for each in node.args:
                self.name(each, everywhere=of_package)
            if called == "with_columns":
                for keyword in node.keywords:
                    if keyword.arg is not None:
                        self._source.replace(
                            self._source.span(keyword)[0], keyword.arg, self._renames.column(keyword.arg)
                        )
        for keyword in node.keywords:
            if keyword.arg == "metric":
                self._source.text(keyword.value, self._renames.metric)


def _is_metrics(node: ast.expr) -> bool:
    """Return whether a value is a table of metrics, by its name."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name == "metrics" or name.endswith("_metrics")
