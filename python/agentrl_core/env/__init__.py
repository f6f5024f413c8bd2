"""Environments: where tasks come from, what answers an action, and what it paid.

`Environment` and `Episode` are protocols: any object with their methods will do. `ReasoningGym` is a real environment
on the package of that name, `Calculator` a safe tool. Names load on first use, so importing this package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl_core.data.codes import StepFlag
    from agentrl_core.env.base import (
        FORMAT_ERROR,
        TOOL_ERROR,
        TOOL_RESULT,
        Environment,
        Episode,
        Outcome,
        Split,
        Task,
        Tool,
        ToolReply,
    )
    from agentrl_core.env.calculator import Calculator
    from agentrl_core.env.reasoning_gym import ReasoningGym

_HOME = {
    **dict.fromkeys(
        (
            "Environment",
            "Episode",
            "FORMAT_ERROR",
            "Outcome",
            "Split",
            "StepFlag",
            "TOOL_ERROR",
            "TOOL_RESULT",
            "Task",
            "Tool",
            "ToolReply",
        ),
        "base",
    ),
    "Calculator": "calculator",
    "ReasoningGym": "reasoning_gym",
}

__all__ = [
    "FORMAT_ERROR",
    "TOOL_ERROR",
    "TOOL_RESULT",
    "Calculator",
    "Environment",
    "Episode",
    "Outcome",
    "ReasoningGym",
    "Split",
    "StepFlag",
    "Task",
    "Tool",
    "ToolReply",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
