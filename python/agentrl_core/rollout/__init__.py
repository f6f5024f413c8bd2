"""Phase rollout: planners that decide how many trajectories to start and where to fork them."""

from agentrl_core.rollout.entropy_branching import EntropyBranching
from agentrl_core.rollout.independent import Independent
from agentrl_core.rollout.planner import Frontier, Planner

__all__ = ["EntropyBranching", "Frontier", "Independent", "Planner"]
