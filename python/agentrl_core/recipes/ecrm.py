"""ECRM: part of what is maximised is the mean of the worst scores, not of all (arXiv:2301.10932).

    R' = R / 2 + (q - max(q - R, 0) / 0.25) / 2,   q = the 0.25-quantile of the group,   A = R' - mean R'

The mean of the second part is the conditional value at risk. The paper learns a quantile for every state of a control
task; here that of the group stands for it.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import OutcomeScore, RiskAverse

ECRM = Recipe(
    name="ecrm",
    source="arXiv:2301.10932",
    reward=(OutcomeScore(), RiskAverse()),
    advantage=GroupRelative(scale="none"),
    loss=Policy(),
)
