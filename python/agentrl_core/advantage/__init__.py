"""Phase advantage: how much better a trajectory or a step was than what it is compared with."""

from agentrl_core.advantage.anchored import GroupInGroup
from agentrl_core.advantage.gae import Gae
from agentrl_core.advantage.group import group_relative, leave_one_out
from agentrl_core.advantage.group_in_group import gigpo
from agentrl_core.advantage.normalisation import Normalisation
from agentrl_core.advantage.normalised_returns import NormalisedReturns
from agentrl_core.advantage.relative import GroupRelative

__all__ = [
    "Gae",
    "GroupInGroup",
    "GroupRelative",
    "Normalisation",
    "NormalisedReturns",
    "gigpo",
    "group_relative",
    "leave_one_out",
]
