"""Phase rollout: programs that define the trajectories of a task, turn by turn, and their forks.

A program is a class with one asynchronous method: `Rollout.branch` drives one trajectory, `Rollout.group` the
trajectories of one task, `Rollout.cohort` the groups that were selected together.
"""

from agentrl_core.rollout.async_tasks import gather_or_cancel
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.program import BudgetedRollout, Cohort, Independent, Rollout
from agentrl_core.rollout.programs.deferred_tasks import deferred_tasks
from agentrl_core.rollout.programs.early_stop import EarlyStop
from agentrl_core.rollout.programs.entropy_branching import EntropyBranching
from agentrl_core.rollout.programs.hints import (
    ExampleHint,
    Hint,
    HintSource,
    SolutionHint,
    ask_agent,
    fill_template,
    insert_text,
)
from agentrl_core.rollout.programs.monte_carlo_tree_search import MonteCarlo
from agentrl_core.rollout.programs.observation_window import ObservationWindow
from agentrl_core.rollout.programs.record_precision import RecordPrecision
from agentrl_core.rollout.programs.repair import (
    ErrorLocation,
    ErrorLocator,
    FlagLocator,
    JudgeLocator,
    Repair,
    reasoning_steps,
)
from agentrl_core.rollout.programs.rounds import RolloutSpec, RoundResult, Rounds
from agentrl_core.rollout.programs.self_play import SelfPlay
from agentrl_core.rollout.programs.side_task import SideTask
from agentrl_core.rollout.programs.stored_search import StoredSearches
from agentrl_core.rollout.programs.text_memory import TextMemory, read_notes
from agentrl_core.rollout.programs.world_model import WorldModelEnvironment
from agentrl_core.rollout.search_tree import SearchTree
from agentrl_core.rollout.token_path import Position
from agentrl_core.rollout.turn import Turn

__all__ = [
    "Branch",
    "BudgetedRollout",
    "Cohort",
    "EarlyStop",
    "EntropyBranching",
    "ErrorLocation",
    "ErrorLocator",
    "ExampleHint",
    "FlagLocator",
    "Group",
    "Hint",
    "HintSource",
    "Independent",
    "JudgeLocator",
    "MonteCarlo",
    "ObservationWindow",
    "Position",
    "Prefix",
    "RecordPrecision",
    "Repair",
    "Rollout",
    "RolloutSpec",
    "RoundResult",
    "Rounds",
    "SearchTree",
    "SelfPlay",
    "SideTask",
    "SolutionHint",
    "StoredSearches",
    "TextMemory",
    "Turn",
    "WorldModelEnvironment",
    "ask_agent",
    "deferred_tasks",
    "fill_template",
    "gather_or_cancel",
    "insert_text",
    "read_notes",
    "reasoning_steps",
]
