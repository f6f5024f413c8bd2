"""What a component is: options that are checked, columns it needs and makes, numbers that follow a schedule."""

from agentrl_core.component.component import BatchComponent, Column, Component, Level, StatefulComponent, find_component
from agentrl_core.component.rows import Rows
from agentrl_core.component.schedule import Schedule

__all__ = [
    "BatchComponent",
    "Column",
    "Component",
    "Level",
    "Rows",
    "Schedule",
    "StatefulComponent",
    "find_component",
]
