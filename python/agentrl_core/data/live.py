"""What the methods of a Forest that stand in files of their own know of it."""

from __future__ import annotations

from typing import Protocol

from agentrl_core import _core


class Live(Protocol):
    """A `Forest`, as its methods in other files see it."""

    _core: _core.Forest
