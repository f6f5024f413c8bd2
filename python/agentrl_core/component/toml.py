"""Write recipes as TOML documents, which the standard library can only read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_lines(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    """Return a table as lines of TOML: plain values first, then sub-tables. Keys are field names, so they stay bare."""
    lines = [f"{key} = {_toml_value(value)}" for key, value in table.items() if not _is_table(value)]
    for key, value in table.items():
        name = ".".join((*path, key))
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *toml_lines(value, (*path, key))]
        elif _is_table(value):
            for link in value:
                lines += ["", f"[[{name}]]", *toml_lines(link, (*path, key))]
    return lines if path else [*lines, ""]


def _is_table(value: Any) -> bool:
    """Return whether a value is a table or a list of tables, which come after plain values in TOML."""
    return isinstance(value, Mapping) or (isinstance(value, list) and isinstance(next(iter(value), None), Mapping))


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):
        # A JSON string is a TOML string, but for the one control character that JSON does not escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
