"""Phase schedule: numbers that follow metrics, and what happens to models between optimizer steps and iterations."""

from agentrl_core.component.controller import Choice, Controller
from agentrl_core.schedule.adaptive import AdaptiveKL, Dual, LogStep
from agentrl_core.schedule.condition import Above, Below, FirstValue, Plateau
from agentrl_core.schedule.feedback import PID, BangBang, Hysteresis
from agentrl_core.schedule.hook import (
    FreezeModel,
    Hook,
    LimitStaleness,
    RepeatStage,
    RollbackModels,
    ScaleLearningRate,
    SkipStep,
    StopTraining,
    SwapModels,
    SyncModel,
)

__all__ = [
    "PID",
    "Above",
    "AdaptiveKL",
    "BangBang",
    "Below",
    "Choice",
    "Controller",
    "Dual",
    "FirstValue",
    "FreezeModel",
    "Hook",
    "Hysteresis",
    "LimitStaleness",
    "LogStep",
    "Plateau",
    "RepeatStage",
    "RollbackModels",
    "ScaleLearningRate",
    "SkipStep",
    "StopTraining",
    "SwapModels",
    "SyncModel",
]
