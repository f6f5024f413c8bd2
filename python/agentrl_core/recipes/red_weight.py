"""RED-Weight: REINFORCE on group-relative rewards, with exponentially more weight for better draws (arXiv:2509.24203).

    L = - mean over tokens of exp(A) A log p_t,   A = R - mean R

This shaping of the data is the third way to make an off-policy algorithm work, besides a clip range (`rec`) and a
penalty (`rep`). There is no ratio and no clip range: the loss does not read the log-probs of the policy that sampled.
The mean in A is unweighted. With the mean weighted by exp(A) the loss would be weighted REINFORCE; the difference
between the two imitates the better answers.

Equations:
    Read: the authors' code, and third-party notes; the paper's text was not read.

    - C1, advantage: `GroupRelative(scale="none")`.
    - C2, weight: `ColumnScaled(column="advantage", kind="exponential")`, temperature 1.
    - C3, loss: `Policy` with `Reinforce` and no clip range, mean over tokens.

Differs:
    - Largest weight: none in the code; 1e6 here, which is reached at A = 13.8.
    - Optimizer steps a batch: not stated; 1 here.
    - A group of one: an error in the code; here its advantage is 0.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.weight import ColumnScaled

RED_WEIGHT = Recipe(
    name="red_weight",
    source="arXiv:2509.24203",
    advantage=GroupRelative(scale="none"),
    weight=ColumnScaled(column="advantage", kind="exponential", at_most=1e6),
    loss=Policy(clip=None, surrogate=Reinforce()),
)
