"""Environments: sources of tasks, which answer actions with observations and rewards.

`Environment` and `Episode` are protocols: any object with their methods will do, and `check` verifies them.
`ReasoningGym`, `Gymnasium`, `MiniGrid`, `MiniWoB`, `TextWorld` and `ScienceWorld` are environments on the packages of
those names, `ToolEnvironment` one of your own tasks with tools: `Calculator`, `Python`, `Search`, those of `MCP`
servers, yours.
Names load on first use, so importing this package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy
from agentrl_core.data.table_codes import StepFlag

if TYPE_CHECKING:
    from agentrl_core.env.base import (
        Action,
        Content,
        Context,
        Environment,
        Episode,
        ExtraColumn,
        Message,
        MultiEpisode,
        StepResult,
        Task,
        Tool,
        ToolReply,
    )
    from agentrl_core.env.calculator import Calculator
    from agentrl_core.env.external_agents import Agents
    from agentrl_core.env.gymnasium import Gymnasium
    from agentrl_core.env.image import Image
    from agentrl_core.env.mcp import MCP
    from agentrl_core.env.minigrid import MiniGrid
    from agentrl_core.env.miniwob import MiniWoB
    from agentrl_core.env.protocol_check import check
    from agentrl_core.env.python import Python
    from agentrl_core.env.reasoning_gym import ReasoningGym
    from agentrl_core.env.scienceworld import ScienceWorld
    from agentrl_core.env.search import Search
    from agentrl_core.env.textworld import TextWorld
    from agentrl_core.env.tool_environment import ToolEnvironment

_HOME = {
    **dict.fromkeys(
        (
            "Action",
            "as_messages",
            "Content",
            "Context",
            "Environment",
            "Episode",
            "ExtraColumn",
            "Message",
            "MultiEpisode",
            "StepResult",
            "Task",
            "Tool",
            "ToolReply",
        ),
        "base",
    ),
    "Agents": "external_agents",
    "Calculator": "calculator",
    "Gymnasium": "gymnasium",
    "Image": "image",
    "MCP": "mcp",
    "MiniGrid": "minigrid",
    "MiniWoB": "miniwob",
    "Python": "python",
    "ReasoningGym": "reasoning_gym",
    "ScienceWorld": "scienceworld",
    "Search": "search",
    "TextWorld": "textworld",
    "ToolEnvironment": "tool_environment",
    "check": "protocol_check",
}

__all__ = [
    "MCP",
    "Action",
    "Agents",
    "Calculator",
    "Content",
    "Context",
    "Environment",
    "Episode",
    "ExtraColumn",
    "Gymnasium",
    "Image",
    "Message",
    "MiniGrid",
    "MiniWoB",
    "MultiEpisode",
    "Python",
    "ReasoningGym",
    "ScienceWorld",
    "Search",
    "StepFlag",
    "StepResult",
    "Task",
    "TextWorld",
    "Tool",
    "ToolEnvironment",
    "ToolReply",
    "as_messages",
    "check",
]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
