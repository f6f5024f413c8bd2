"""Phase advantage: how much better a trajectory or a step was than what it is compared with."""

from agentrl_core.advantage.baseline import BaselineRelative, TrackedBaseline
from agentrl_core.advantage.compat import compat
from agentrl_core.advantage.entropy_bonus import EntropyBonus
from agentrl_core.advantage.gigpo import gigpo
from agentrl_core.advantage.relative_to_group import GroupRelative, Normalisation, group_relative
from agentrl_core.advantage.returns import Discounted, Gae
from agentrl_core.advantage.tree import TreeRelative

__all__ = [
    "BaselineRelative",
    "Discounted",
    "EntropyBonus",
    "Gae",
    "GroupRelative",
    "Normalisation",
    "TrackedBaseline",
    "TreeRelative",
    "compat",
    "gigpo",
    "group_relative",
]
