"""Phase rollout: programs that say which trajectories a task gets, turn by turn, and where they fork.

A program is a class with one asynchronous method: `Rollout.branch` drives one trajectory, `Rollout.group` the
trajectories of one task, `Rollout.cohort` the groups that were selected together.
"""

from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.cohort import Cohort
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.library import Library
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.program import Rollout
from agentrl_core.rollout.programs.best_first import BestFirst
from agentrl_core.rollout.programs.deferred_tasks import Later, later_tasks
from agentrl_core.rollout.programs.early_stop import EarlyStop
from agentrl_core.rollout.programs.entropy_branching import EntropyBranching
from agentrl_core.rollout.programs.guidance import Advice, Examples, Fixed, Guidance, Help, Solution
from agentrl_core.rollout.programs.horizon import Horizon
from agentrl_core.rollout.programs.independent import Independent, WithPrecision
from agentrl_core.rollout.programs.monte_carlo import MonteCarlo
from agentrl_core.rollout.programs.observation_window import Window
from agentrl_core.rollout.programs.repair import Fault, Finder, Flagged, Judged, Repair, Step, steps_of
from agentrl_core.rollout.programs.rounds import Members, Round, Rounds
from agentrl_core.rollout.programs.self_play import Play
from agentrl_core.rollout.programs.side_task import Asked
from agentrl_core.rollout.programs.stored_search import StoredSearches
from agentrl_core.rollout.programs.text_memory import Learning, notes
from agentrl_core.rollout.programs.token_forks import TokenForks
from agentrl_core.rollout.programs.world_model import Imagined
from agentrl_core.rollout.search_tree import SearchTree
from agentrl_core.rollout.token_path import Place
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
