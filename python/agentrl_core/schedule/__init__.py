"""Phase hooks: actions on models between optimizer steps; and controllers, numbers that follow metrics."""

from agentrl_core.component.controller import Choice, Controller
from agentrl_core.schedule.adaptive import AdaptiveKL, Dual
from agentrl_core.schedule.condition import Above, Below, Plateau
from agentrl_core.schedule.hook import FreezeModel, Hook, LimitStaleness, RepeatStage, SkipStep, StopTraining, SyncModel
from agentrl_core.schedule.pid import PID

__all__ = [
    "PID",
    "Above",
    "AdaptiveKL",
    "Below",
    "Choice",
    "Controller",
    "Dual",
    "FreezeModel",
    "Hook",
    "LimitStaleness",
    "Plateau",
    "RepeatStage",
    "SkipStep",
    "StopTraining",
    "SyncModel",
]
