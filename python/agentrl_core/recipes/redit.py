"""ReDit: a little noise on discrete rewards, so that groups of equal rewards have a direction (arXiv:2506.18631).

    R' = R + u,  u uniform in [-0.05, 0.05],   A = (R' - mean) / std

The gradient is the same on average. A group of equal rewards gets advantages of full size, which is meant. Filters
judge the reward without noise, `score_clean`. Normal noise of the same spread: `reward.NoiseReward(kind="normal")`.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import NoiseReward, OutcomeScore

REDIT = Recipe(
    name="redit",
    source="arXiv:2506.18631",
    reward=(OutcomeScore(), NoiseReward()),
    advantage=GroupRelative(),
    loss=Policy(),
)
