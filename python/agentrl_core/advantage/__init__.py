"""Phase advantage: how much better a trajectory or a step was than what it is compared with."""

from agentrl_core.advantage.compat import compat
from agentrl_core.advantage.group import GroupRelative, LeaveOneOut, group_relative, leave_one_out
from agentrl_core.advantage.group_in_group import GiGPO, gigpo

__all__ = ["GiGPO", "GroupRelative", "LeaveOneOut", "compat", "gigpo", "group_relative", "leave_one_out"]
