"""Phase advantage: how much better a trajectory or a step was than what it is compared with."""

from agentrl_core.advantage.anchored import GroupInGroup
from agentrl_core.advantage.baseline import BaselineRelative
from agentrl_core.advantage.bonus import EntropyBonus
from agentrl_core.advantage.checklists import ChecklistRelative
from agentrl_core.advantage.compat import compat
from agentrl_core.advantage.consistency import Consistency
from agentrl_core.advantage.constrained import ConstrainedSum
from agentrl_core.advantage.cumulative import CumulativeStandardised
from agentrl_core.advantage.doubly_robust import DoublyRobust
from agentrl_core.advantage.gae import Gae
from agentrl_core.advantage.greedy import GreedyRelative
from agentrl_core.advantage.group import group_relative, leave_one_out
from agentrl_core.advantage.group_in_group import gigpo
from agentrl_core.advantage.normalisation import Normalisation
from agentrl_core.advantage.normalised_returns import NormalisedReturns
from agentrl_core.advantage.optimal_baseline import OptimalTokenBaseline
from agentrl_core.advantage.refinement import Refinement
from agentrl_core.advantage.relative import GroupRelative
from agentrl_core.advantage.segments import SegmentRelative
from agentrl_core.advantage.softmax import HistoryWeighted, LengthWeighted, SoftmaxScaled
from agentrl_core.advantage.tail_risk import TailRisk
from agentrl_core.advantage.tracked import TrackedBaseline
from agentrl_core.advantage.tree import TreeRelative

__all__ = [
    "BaselineRelative",
    "ChecklistRelative",
    "Consistency",
    "ConstrainedSum",
    "CumulativeStandardised",
    "DoublyRobust",
    "EntropyBonus",
    "Gae",
    "GreedyRelative",
    "GroupInGroup",
    "GroupRelative",
    "HistoryWeighted",
    "LengthWeighted",
    "Normalisation",
    "NormalisedReturns",
    "OptimalTokenBaseline",
    "Refinement",
    "SegmentRelative",
    "SoftmaxScaled",
    "TailRisk",
    "TrackedBaseline",
    "TreeRelative",
    "compat",
    "gigpo",
    "group_relative",
    "leave_one_out",
]
