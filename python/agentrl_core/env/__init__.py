"""Environments: where tasks come from, what answers an action, and what it paid.

`Environment` and `Episode` are protocols: any object with their methods will do. `ReasoningGym` is a real environment
on the package of that name, `Calculator` a safe tool. Names load on first use, so importing this package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core.data.codes import StepFlag
    from agentrl_core.env.base import (
        FORMAT_ERROR,
        TOOL_ERROR,
        TOOL_RESULT,
        Content,
        Environment,
        Episode,
        Fact,
        Message,
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
            "Content",
            "Environment",
            "Episode",
            "FORMAT_ERROR",
            "Fact",
            "Message",
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
    "Content",
    "Environment",
    "Episode",
    "Fact",
    "Message",
    "Outcome",
    "ReasoningGym",
    "Split",
    "StepFlag",
    "Task",
    "Tool",
    "ToolReply",
]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
