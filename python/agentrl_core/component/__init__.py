"""What a component is: options that are checked, columns it needs and makes, numbers that follow a schedule."""

from agentrl_core.component.batch_component import BatchComponent, Where
from agentrl_core.component.column import Column, Level, draw, step, token
from agentrl_core.component.component import Component, find_component
from agentrl_core.component.controller import Choice, Controller
from agentrl_core.component.options import column_name, option
from agentrl_core.component.rows import Rows
from agentrl_core.component.schedule import Schedule
from agentrl_core.component.state import IterationRecord, State, Stateful, StatefulComponent

__all__ = [
    "BatchComponent",
    "Choice",
    "Column",
    "Component",
    "Controller",
    "IterationRecord",
    "Level",
    "Rows",
    "Schedule",
    "State",
    "Stateful",
    "StatefulComponent",
    "Where",
    "column_name",
    "draw",
    "find_component",
    "option",
    "step",
    "token",
]
