"""Phase schedule: numbers that follow metrics, and what happens to models between optimizer steps and iterations."""

from agentrl_core.schedule.action import Action

__all__ = ["Action"]
