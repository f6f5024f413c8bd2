"""SPO: reward an answer by how often it is preferred to the other answers of its group (arXiv:2401.04056).

    r_i = mean over j != i of P(i beats j),   A_i = r_i - mean r

Self-play compares answers of the same policy, and needs neither a reward model nor transitive preferences. The mean
of r is 1/2 if all answers were compared. The paper leaves the policy loss open; here it is the loss of PPO.

Needs: the facts `preference.0`, `preference.1`, ... of trajectories: the probability that the trajectory beats the
group's first, second, ... draw.

Equations:
    Read: the abstract, third-party notes, and summaries of a talk; the paper's text was not read.

    - N1, reward: `WinRate`.
    - N2, policy gradient: `GroupRelative(scale="none")`, with PPO's clipped loss.
    - N3, game: self-play: the answers of a group are compared with each other.

Differs:
    - Opponents: the summaries have a queue of recent trajectories, and allow batches of comparisons; here, as in the
      abstract, an answer is compared with the other answers of its group.
    - Optimizer steps a batch: not stated; 1 here, so the clip range never acts.
    - An answer without comparisons: its reward is 1/2 here and counts in the mean; its advantage is 0 if all other
      answers were compared.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.reward import WinRate

SPO_SELFPLAY = Recipe(
    name="spo_selfplay",
    source="arXiv:2401.04056",
    reward=WinRate(),
    advantage=GroupRelative(scale="none"),
    loss=Policy(),
)
