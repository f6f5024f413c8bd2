"""Phase hooks: actions on models between optimizer steps; and controllers, numbers that follow metrics."""

from agentrl_core.component.controller import Choice, Controller
from agentrl_core.schedule.adaptive import AdaptiveKL, Dual
from agentrl_core.schedule.condition import Above, Below
from agentrl_core.schedule.feedback import PID
from agentrl_core.schedule.hook import FreezeModel, Hook, LimitStaleness, RepeatStage, SkipStep, StopTraining, SyncModel

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
    "RepeatStage",
    "SkipStep",
    "StopTraining",
    "SyncModel",
]
