"""SubPO: a step is paid for what it adds to a set of things covered, which has diminishing returns (arXiv:2307.13372).

    r_t = F(visited up to t) - F(visited before t),   A_t = sum over k >= t of r_k,   L = - mean_i sum_t A_t log p_t

F is the number of different states of a trajectory, on top of what the environment pays for steps; other keys, such as
tools or documents, are `reward.FirstVisits(key=...)`, and other set functions are the environment's, as rewards of
steps. The paper's baseline is open.

Needs: states of steps (`Environment.state_key`), and rewards of steps.
"""

from agentrl_core.advantage import Discounted
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.recipe import Recipe
from agentrl_core.reward import FirstVisits, OutcomeScore

SUBPO = Recipe(
    name="subpo",
    source="arXiv:2307.13372",
    reward=(OutcomeScore(), OutcomeScore(level="step"), FirstVisits()),
    advantage=Discounted(column="step_score"),
    loss=Policy(clip=None, surrogate=Reinforce(), aggregate="constant", constant=1.0),
)
