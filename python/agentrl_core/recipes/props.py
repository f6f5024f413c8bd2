"""PROPS, told for a tree: what was sampled too seldom for how likely it is is sampled next (arXiv:2311.08290).

Of 16 rollouts 8 start at the prompt, and the others leave where the tree lags behind the policy
(`rollout.UnderSampled`), so that a group is nearer to the policy than as many independent samples. The public code
trains a behaviour policy on control tasks, with a clip of 0.3 and refreshed every 16 steps; this is its rule, not that.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import UnderSampled

PROPS = Recipe(
    name="props",
    source="arXiv:2311.08290",
    rollout=UnderSampled(budget=16, initial=8),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.3, 0.3)),
)
