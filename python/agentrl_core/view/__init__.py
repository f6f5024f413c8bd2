"""View a run: a page of the whole run, as one HTML file that opens from disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core.view.page import Page

_HOME = {"Page": "page"}

__all__ = ["Page"]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
