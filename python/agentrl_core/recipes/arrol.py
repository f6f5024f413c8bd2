"""ARRoL: half of a group is stopped early, so that right and wrong ones are balanced (arXiv:2603.24840).

Each of 16 rollouts generates 512 tokens; half go on (`rollout.PruneRunning`), and GRPO compares those alone. The first
20 iterations prune nothing.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import PruneRunning

ARROL = Recipe(
    name="arrol",
    source="arXiv:2603.24840",
    rollout=PruneRunning(tokens=512, keep=0.5, balance=0.5, begin=20),
    advantage=GroupRelative(),
    loss=Policy(),
)
