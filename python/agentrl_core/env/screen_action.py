"""Actions on a screen, written as text: clicks, keys, typing and scrolling."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

LEGEND = (
    'click(x, y), click(element), type("text"), key("Enter"), scroll(x, y, down). '
    "A box counts as its centre: click(left, top, right, bottom)."
)
"""The forms of an action, for a prompt."""

Kind = Literal["click", "type", "key", "scroll"]

_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)
_CALL = re.compile(r"(click|type|key|scroll)\s*\((.*)\)", re.DOTALL)
_LONGEST_TEXT = 1000
_FARTHEST = 100_000


@dataclass(frozen=True)
class ScreenAction:
    """One action on a screen.

    Attributes:
        kind: kind of the action, such as `click` or `type`.
        numbers: for a click the element, point or box; for a scroll the element or point, and the pixels.
        text: typed text, or the name of a key.
    """

    kind: Kind
    numbers: tuple[float, ...] = ()
    text: str = ""


_COUNTS = {"click": (1, 2, 4), "scroll": (2, 3)}


def parse_action(action: str) -> ScreenAction | None:
    r"""Parse the last `<action>…</action>` of a text, otherwise the whole text; None if it is not an action.

    Returns:
        The action, or None if the text is in none of the forms of `LEGEND`.

    Example:
        >>> from agentrl_core.env.screen_action import parse_action
        >>> parse_action("I click. <action>click(30, 44)</action>")
        ScreenAction(kind='click', numbers=(30.0, 44.0), text='')
        >>> parse_action('type("say \\"hello\\"")').text
        'say "hello"'
        >>> parse_action("press the button") is None
        True
    """
    found = _ACTION.findall(action)
    call = _CALL.fullmatch((found[-1] if found else action).strip())
    if call is None:
        return None
    kind: Kind = call[1]  # type: ignore[assignment]  # the expression has no other
    try:
        values = json.loads(f"[{call[2]}]", strict=False) if len(call[2]) <= _LONGEST_TEXT else []
    except (ValueError, RecursionError):
        return None
    if kind in ("type", "key"):
        return ScreenAction(kind, text=values[0]) if len(values) == 1 and isinstance(values[0], str) else None
    if len(values) not in _COUNTS[kind] or not all(type(value) in (int, float) for value in values):
        return None
    if not all(abs(value) <= _FARTHEST for value in values):  # NaN is not
        return None
    return ScreenAction(kind, tuple(float(value) for value in values))
