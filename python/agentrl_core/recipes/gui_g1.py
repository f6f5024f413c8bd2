"""GUI-G1: grounding without the biases of length and of easy, large boxes (arXiv:2505.15810).

    R = hit + 0.25 overlap + 0.125 edges,   A = R - mean R
    L = mean_i (w / 64) sum_t - min(r A, clip(r, 0.8, 1.2) A)

`overlap` is the intersection over union of the boxes, `edges` the harmonic mean of 1 - |distance| / image side over the
four edges; w, the weight of a task, is larger for smaller boxes. Its formula is not public; 1 / sqrt(relative area)
between 1/2 and 2, with mean 1, is a proposal.

Needs: the reward's components `overlap` and `edges` (the reward itself is the hit), and the fact `task_weight`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.weight import ColumnScaled

GUI_G1 = Recipe(
    name="gui_g1",
    source="arXiv:2505.15810",
    reward=(
        OutcomeScore(),
        CombineReward(column="reward.overlap", coefficient=0.25),
        CombineReward(column="reward.edges", coefficient=0.125),
    ),
    advantage=GroupRelative(scale="none"),
    weight=ColumnScaled(column="task_weight"),
    loss=Policy(aggregate="constant", constant=64.0),
)
