"""W-REINFORCE: wrong answers teach in full, right ones a tenth, so that answers stay diverse (arXiv:2506.01347).

    A = 0.1 of a right answer, -1 of a wrong one;   L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A)

Neither baseline nor spread. Its parts alone, positive and negative reinforcement (PSR, NSR), are
`reward.OutcomeScore(success=1.0, failure=0.0)` and `reward.OutcomeScore(success=0.0, failure=-1.0)`; they also drop the
draws of advantage 0 from the mean.

Needs: which trajectories succeeded.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.reward import OutcomeScore

W_REINFORCE = Recipe(
    name="w_reinforce",
    source="arXiv:2506.01347",
    reward=OutcomeScore(success=0.1, failure=-1.0),
    advantage=GroupRelative(center="none", scale="none"),
    loss=Policy(),
)
