"""Phase rollout: programs that say which trajectories a task gets, turn by turn, and where they fork.

A program is a class with one asynchronous method: `Rollout.branch` drives one trajectory, `Rollout.group` the
trajectories of one task, `Rollout.cohort` the groups that were selected together.
"""

from agentrl_core.rollout.best_first import BestFirst
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.cohort import Cohort
from agentrl_core.rollout.entropy_branching import EntropyBranching
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.independent import Independent
from agentrl_core.rollout.monte_carlo import MonteCarlo
from agentrl_core.rollout.path import Place
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.program import Rollout
from agentrl_core.rollout.search_tree import SearchTree
from agentrl_core.rollout.stored import StoredSearches
from agentrl_core.rollout.turn import Turn

__all__ = [
    "BestFirst",
    "Branch",
    "Cohort",
    "EntropyBranching",
    "Group",
    "Independent",
    "MonteCarlo",
    "Place",
    "Prefix",
    "Rollout",
    "SearchTree",
    "StoredSearches",
    "Turn",
]
