"""Elements of a page: as text, and the one that an instruction names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_core.env.screen_facts import Box

_CONTROLS = ("BUTTON", "A", "SELECT", "TEXTAREA")


def elements(page: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield an element and its descendants with their depth, in page order.

    Args:
        page: an element in the form of MiniWoB's `core.getDOMInfo`.
        depth: depth of the element.
    """
    yield depth, page
    for child in page["children"]:
        yield from elements(child, depth + 1)


def page_text(page: Mapping[str, Any]) -> str:
    """Return a page as text: a line for each control, and for each element with a text, a value or an id.

    A line has the number of the element, its kind, its name, its text, its value and its box (left, top, right,
    bottom). Text between elements has no number.

    Example:
        >>> from agentrl_core.env.page_elements import page_text
        >>> button = {"tag": "BUTTON", "ref": 4, "id": "yes", "text": "Yes", "children": []}
        >>> button |= {"left": 10, "top": 60, "width": 40, "height": 40}
        >>> page_text({"tag": "BODY", "ref": 1, "id": "", "children": [button]})
        '[4] button #yes "Yes" (10, 60, 50, 100)'
    """
    lines = []
    for _, element in elements(page):
        text, value = str(element.get("text") or ""), element.get("value")
        if element["tag"] == "t":
            lines.append(f'"{text}"')
            continue
        if not (text or value is not None or _is_control(element) or element["id"]):
            continue
        parts = [f"[{element['ref']}]", element["tag"].lower()]
        parts += [f"#{element['id']}"] if element["id"] else []
        parts += [f'"{text}"'] if text else []
        if value is not None:
            parts.append(("checked" if value else "unchecked") if isinstance(value, bool) else f'value "{value}"')
        parts += ["focused"] if element.get("focused") else []
        lines.append(f"{' '.join(parts)} ({', '.join(f'{edge:.0f}' for edge in _box_of(element))})")
    return "\n".join(lines)


def target_of(instruction: str, page: Mapping[str, Any]) -> Box | None:
    """Return the box of the only element that an instruction names or, if it names none, of the only control, or None.

    Elements without children count: a named one has a text that occurs in the instruction as whole words, and a control
    is a button, link or field. None: the instruction names several, or it names none and there is not just one control.
    """
    leaves = [element for _, element in elements(page) if not element["children"]]
    named = [element for element in leaves if _is_named(str(element.get("text") or ""), instruction)]
    controls = [element for element in leaves if _is_control(element)]
    for candidates in (named, [] if named else controls):
        if len(candidates) == 1:
            return _box_of(candidates[0])
    return None


def _box_of(element: Mapping[str, Any]) -> Box:
    left, top = float(element["left"]), float(element["top"])
    return left, top, left + float(element["width"]), top + float(element["height"])


def _is_named(text: str, instruction: str) -> bool:
    return bool(text) and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", instruction) is not None


def _is_control(element: Mapping[str, Any]) -> bool:
    return element["tag"] in _CONTROLS or element["tag"].startswith("INPUT_")
