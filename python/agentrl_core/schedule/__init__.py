"""Phase schedule: numbers that follow metrics, and what happens to models between optimizer steps and iterations."""

from agentrl_core.component.controller import Choice, Controller
from agentrl_core.schedule.action import Action
from agentrl_core.schedule.adaptive import Dual, LogStep, Proportional
from agentrl_core.schedule.condition import Above, Below, Condition, First, Plateau
from agentrl_core.schedule.feedback import PID, BangBang, Hysteresis

__all__ = [
    "PID",
    "Above",
    "Action",
    "BangBang",
    "Below",
    "Choice",
    "Condition",
    "Controller",
    "Dual",
    "First",
    "Hysteresis",
    "LogStep",
    "Plateau",
    "Proportional",
]
