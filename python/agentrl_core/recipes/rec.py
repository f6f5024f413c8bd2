"""REC: REINFORCE on group-relative rewards is an off-policy algorithm, held by a clip range and no weights.

    L = - mean over tokens of M_t A log p_t,   A = R - mean R
    M_t = 0 if A > 0 and p / p_old > 1.2, or A < 0 and p / p_old < 0.8

The paper finds that the range does the work of PPO, importance weights little. With weights:
`Reinforce("ratio", "ratio")`; a range with an outer ring: `InBounds("ring", 0.4, 3.0)`; OPMD's baseline:
`advantage.BaselineRelative(kind="log_mean_exp", temperature=1.0)`; AsymRE: `GroupRelative(scale="none", shift=0.1)`
and no mask; RED-Drop: `reward.outcome.DropSurplus()` behind `OutcomeScore()`.
Its siblings are `rep`, with a penalty in the place of the range, and `red_weight`.

Source: arXiv:2509.24203.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import InBounds, Policy, Reinforce

REC = Recipe(
    name="rec",
    source="arXiv:2509.24203",
    advantage=GroupRelative(scale="none"),
    loss=Policy(surrogate=Reinforce(), mask=InBounds()),
)
