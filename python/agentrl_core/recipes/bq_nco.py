"""BQ-NCO: ways that lead to the same rest of a task are one state, and steps from it are compared.

Past actions matter only by what is left to do (a bisimulation quotient): tours of the same cities that end at the
same place leave the same problem, in whatever order they went. With the key of what is left as the state, more steps
are comparable, also those of different tasks:

    A_t = G_t - mean of G over all steps of the batch that acted on the same rest,   G_t = sum of the rewards from t on

Source: BQ-NCO: Bisimulation Quotienting for Efficient Neural Combinatorial Optimization (arXiv:2301.03313). It imitates
optimal solutions; that steps are compared, and clipped as PPO does, is ours. Needs: an environment whose `state_key` is
canonical: of what is left to do alone, sets in order, history left out; rewards of steps.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import Policy

BQ_NCO = Recipe(
    name="bq_nco",
    source="arXiv:2301.03313",
    advantage=(
        Discounted(gamma=1.0),
        GroupRelative(column="advantage", level="step", group_by="state_key", scale="none"),
    ),
    loss=Policy(),
)
