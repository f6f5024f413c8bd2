"""Base of components: checked options, columns that a component needs and makes, and scheduled numbers."""

from agentrl_core.component.batch_component import BatchComponent, Where
from agentrl_core.component.column import Column, draw, key_columns, step, token
from agentrl_core.component.component import Component
from agentrl_core.component.options import column_name, option
from agentrl_core.component.rows import Rows, level_of, mean_of_tokens, sum_rows
from agentrl_core.component.state import IterationRecord, State, Stateful, StatefulComponent

__all__ = [
    "BatchComponent",
    "Column",
    "Component",
    "IterationRecord",
    "Rows",
    "State",
    "Stateful",
    "StatefulComponent",
    "Where",
    "column_name",
    "draw",
    "key_columns",
    "level_of",
    "mean_of_tokens",
    "option",
    "step",
    "sum_rows",
    "token",
]
