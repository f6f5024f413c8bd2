"""Phase rollout: programs that say which trajectories a task gets, turn by turn, and where they fork.

A program is a class with one asynchronous method: `Rollout.branch` drives one trajectory, `Rollout.group` the
trajectories of one task, `Rollout.cohort` the groups that were selected together.
"""

from agentrl_core.rollout.asked import Asked
from agentrl_core.rollout.best_first import BestFirst
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.cohort import Cohort
from agentrl_core.rollout.context import Window
from agentrl_core.rollout.early_stop import EarlyStop
from agentrl_core.rollout.entropy_branching import EntropyBranching
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.guidance import Advice, Examples, Fixed, Guidance, Help, Solution
from agentrl_core.rollout.horizon import Horizon
from agentrl_core.rollout.imagined import Imagined
from agentrl_core.rollout.independent import Independent
from agentrl_core.rollout.later import Later, later_tasks
from agentrl_core.rollout.learning import Learning, notes
from agentrl_core.rollout.library import Library
from agentrl_core.rollout.monte_carlo import MonteCarlo
from agentrl_core.rollout.path import Place
from agentrl_core.rollout.play import Play
from agentrl_core.rollout.precision import WithPrecision
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.program import Rollout
from agentrl_core.rollout.repair import Fault, Finder, Flagged, Judged, Repair, Step, steps_of
from agentrl_core.rollout.rounds import Members, Round, Rounds
from agentrl_core.rollout.search_tree import SearchTree
from agentrl_core.rollout.stored import StoredSearches
from agentrl_core.rollout.token_forks import TokenForks
from agentrl_core.rollout.turn import Turn

__all__ = [
    "Advice",
    "Asked",
    "BestFirst",
    "Branch",
    "Cohort",
    "EarlyStop",
    "EntropyBranching",
    "Examples",
    "Fault",
    "Finder",
    "Fixed",
    "Flagged",
    "Group",
    "Guidance",
    "Help",
    "Horizon",
    "Imagined",
    "Independent",
    "Judged",
    "Later",
    "Learning",
    "Library",
    "Members",
    "MonteCarlo",
    "Place",
    "Play",
    "Prefix",
    "Repair",
    "Rollout",
    "Round",
    "Rounds",
    "SearchTree",
    "Solution",
    "Step",
    "StoredSearches",
    "TokenForks",
    "Turn",
    "Window",
    "WithPrecision",
    "later_tasks",
    "notes",
    "steps_of",
]
