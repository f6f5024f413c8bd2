"""W-REINFORCE: weight wrong answers fully and right ones by a tenth, so that answers stay diverse (arXiv:2506.01347).

    A = 0.1 for a right answer, -1 for a wrong one;   L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A)

There is no baseline and no division by the std. Its two parts alone, positive and negative reinforcement (PSR, NSR),
are the rewards `OutcomeScore(success=1.0, failure=0.0)` and `OutcomeScore(success=0.0, failure=-1.0)`, with
`weight=SelectDraws(at_least=1.0)`, which keeps only rollouts whose advantage is not 0.

Needs: the success of each trajectory.

Equations:
    Read: the public code, notes, and the abstract.

    - C1, PSR: an option, `OutcomeScore(success=1.0, failure=0.0)` and `SelectDraws(at_least=1.0)`.
    - C2, NSR: an option, `OutcomeScore(success=0.0, failure=-1.0)` and `SelectDraws(at_least=1.0)`.
    - C3, W-REINFORCE: `OutcomeScore(success=0.1, failure=-1.0)`, neither baseline nor std.
    - C4, rows: left out: the code drops rows until its workers share them evenly.
    - C5, loss: `Policy`, clip range 0.2, mean over tokens.

Differs:
    - Entropy: the code keeps the framework's coefficient of 0.001; none here.
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
    minibatches=4,
)
