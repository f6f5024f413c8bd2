"""SSL (sweet spot learning): quality counts in a few ordered tiers, neither binary nor continuous (arXiv:2601.22491).

    R = ceil(4 x) / 4 where the answer is valid, else 0,   x = exp(-(dx^2 + dy^2) / 2),   A = (R - mean) / std

dx and dy are the distances from the target in units of its size. Tasks with a matched share x of cells or items have
`reward.OutcomeScore()` in the place of `reward.GaussianProximity`. How many tiers: 4, as the paper found best; their
worth is ours.

Needs: the facts `dx` and `dy` of trajectories, and the reward's component `valid`.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import CombineReward, GaussianProximity, RoundUpReward

SSL = Recipe(
    name="ssl",
    source="arXiv:2601.22491",
    reward=(GaussianProximity(column="dx,dy"), RoundUpReward(), CombineReward(column="reward.valid", kind="require")),
    advantage=GroupRelative(),
    loss=Policy(),
)
