"""W-REINFORCE: wrong answers teach in full, right ones a tenth, so that answers stay diverse (arXiv:2506.01347).

    A = 0.1 of a right answer, -1 of a wrong one;   L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A)

Neither baseline nor spread. Its parts alone, positive and negative reinforcement (PSR, NSR), are the rewards
`OutcomeScore(success=1.0, failure=0.0)` and `OutcomeScore(success=0.0, failure=-1.0)`, with
`weight=SelectDraws(at_least=1.0)`, by which only the rollouts with an advantage stay.

Needs: which trajectories succeeded.

Equations:
    Read: the public code, notes, and the abstract.

    - C1, PSR: an option, `OutcomeScore(success=1.0, failure=0.0)` and `SelectDraws(at_least=1.0)`.
    - C2, NSR: an option, `OutcomeScore(success=0.0, failure=-1.0)` and `SelectDraws(at_least=1.0)`.
    - C3, W-REINFORCE: `OutcomeScore(success=0.1, failure=-1.0)`, neither baseline nor spread.
    - C4, rows: left out: rows are dropped in the code until its workers share them evenly.
    - C5, loss: `Policy`, clip range 0.2, mean over tokens.

Differs:
    - Entropy: the code leaves the framework's coefficient of 0.001; none here.
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
