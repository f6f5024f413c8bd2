"""Phase schedule: numbers that follow metrics, and what happens to models between optimizer steps and iterations."""

from agentrl_core.component.controller import Choice, Controller
from agentrl_core.schedule.adaptive import Dual, LogStep, Proportional
from agentrl_core.schedule.condition import Above, Below, Condition, First, Plateau
from agentrl_core.schedule.feedback import PID, BangBang, Hysteresis
from agentrl_core.schedule.hook import Action, Freeze, Rate, Repeat, Rollback, Skip, Staleness, Stop, Swap, Sync

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
    "Freeze",
    "Hysteresis",
    "LogStep",
    "Plateau",
    "Proportional",
    "Rate",
    "Repeat",
    "Rollback",
    "Skip",
    "Staleness",
    "Stop",
    "Swap",
    "Sync",
]
