"""SPPO: regress the log-ratio of an answer on its win probability (arXiv:2405.00675).

    L = mean over answers of (log p - log p_old - (P - 1/2) / beta)^2,   beta = 0.001

P is the mean probability that the answer beats the answers of its group, including itself (a tie). p_old is the policy
of the previous iteration, which sampled the answers. The public code trains only the best and the worst of 5 answers:
`weight.SelectDraws(kind="max_variance", count=2)`.

Equations:
    Read: the paper's sections 3.2 and 4.1 to 4.3, and the authors' code.

    - 4.1, multiplicative weights: not computed: the ideal update, which 4.6 approximates.
    - 4.5, finite-sample regression: left out: the paper trains by 4.6, with the constant in place of log Z.
    - 4.6, objective: `Regression(beta=0.001)` of `GroupRelative(center="none", shift=-0.5)`.
    - C1, win probabilities: `WinRate(include_self=True)`; the environment reports each P_ij.
    - C2, loss of the code: the same loss; here over all answers of a group, see above.
    - C3, single variant: left out: an option of the code that its pipeline does not set.

Differs:
    - Answers: all of a group here, as algorithm 1 allows; the best and the worst in the code.
    - An answer that was compared with no other: P is 0.5, as for a single answer in a group; the source does not
      cover it.
    - Optimizer steps a batch: the code makes an epoch over the pairs of an iteration in batches of 8; here each batch
      is an iteration and has 1 step.

Needs: the facts `preference.0`, `preference.1`, ... of trajectories, as in SPO.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Regression
from agentrl_core.reward import WinRate

SPPO = Recipe(
    name="sppo",
    source="arXiv:2405.00675",
    reward=WinRate(include_self=True),
    advantage=GroupRelative(center="none", scale="none", shift=-0.5),
    loss=Regression(beta=0.001, residual="log_ratio"),
)
