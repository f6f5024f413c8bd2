"""SPO: the reward of an answer is how often it is preferred to the others of its group (arXiv:2401.04056).

    r_i = mean over j != i of P(i beats j),   A_i = r_i - mean r

Self-play against one's own answers needs neither a reward model nor transitive preferences. The mean of r is 1/2 if
all were compared. The paper leaves the policy loss open; here it is PPO's.

Needs: the facts `preference.0`, `preference.1`, ... of trajectories: the probability that this one beats the group's
first, second, ... draw.

Equations:
    Read: the abstract, notes of others, and summaries of a talk; the paper's text was not read.

    - N1, reward: `WinRate`.
    - N2, policy gradient: `GroupRelative(scale="none")`, with PPO's clipped loss.
    - N3, game: self-play: each group is compared with itself.

Differs:
    - Opponents: the summaries have a queue of recent trajectories, and allow batches of comparisons; here, as in the
      abstract, an answer is compared with the others of its group.
    - Optimizer steps a batch: not stated; 1 here, so the clip range never acts.
    - An answer without comparisons: scores 1/2 here and counts, with advantage 0 if all others were compared.
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
