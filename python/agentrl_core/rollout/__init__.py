"""Phase rollout: programs that say which trajectories a task gets, turn by turn, and where they fork.

A program is a class with one asynchronous method: `Rollout.branch` drives one trajectory, `Rollout.group` the
trajectories of one task, `Rollout.cohort` the groups that were selected together.
"""

from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.cohort import Cohort
from agentrl_core.rollout.entropy_branching import EntropyBranching
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.independent import Independent
from agentrl_core.rollout.path import Place
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.program import Rollout
from agentrl_core.rollout.turn import Turn

__all__ = ["Branch", "Cohort", "EntropyBranching", "Group", "Independent", "Place", "Prefix", "Rollout", "Turn"]
