"""Serialise values to JSON text."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

from agentrl_core.exceptions import InvalidInputError


def to_json(value: object, name: str) -> str:
    """Return JSON text. Scalars of NumPy and torch become numbers, NaN and infinity become null.

    Args:
        value: numbers, texts, lists and dicts.
        name: name of the argument, for messages.

    Raises:
        InvalidInputError: JSON cannot represent the value.
    """
    with contextlib.suppress(TypeError, ValueError, RecursionError):  # most values are plain
        return json.dumps(value, allow_nan=False)
    try:
        return json.dumps(_plain(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{name} cannot be saved as JSON: {error}; give numbers, texts, lists and dicts of them"
        ) from None


def is_unicode(text: str) -> bool:
    """Return whether a text is valid Unicode, without lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_deeper(value: object, most: int) -> bool:
    """Return whether lists and tables are nested deeper than `most` levels."""
    level = [value]
    for _ in range(most + 1):
        level = [
            entry
            for each in level
            if isinstance(each, (Mapping, list, tuple))
            for entry in (each.values() if isinstance(each, Mapping) else each)
        ]
    return bool(level)


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
