"""RED-Weight: REINFORCE on group-relative rewards, in which better draws count exponentially more.

    L = - mean over tokens of exp(A) A log p_t, within the range of `rec`,   A = R - mean R

Shaping the data so is the third way, beside a range (`rec`) and a penalty (`rep`), to make an off-policy algorithm
work. The largest weight is 20, a bound of ours.

Source: arXiv:2509.24203.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import InBounds, Policy, Reinforce
from agentrl_core.weight import ColumnScaled

RED_WEIGHT = Recipe(
    name="red_weight",
    source="arXiv:2509.24203",
    advantage=GroupRelative(scale="none"),
    weight=ColumnScaled(column="advantage", kind="exponential", at_most=20.0),
    loss=Policy(surrogate=Reinforce(), mask=InBounds()),
)
