"""IterResearch (EAPO): give rounds of research more reward if they lead to the answer sooner (arXiv:2511.07327).

    r_t = gamma^(T - t) R,   A_t = (r_t - mean r) / std r over all rounds of a task's trajectories
    s_t = exp(mean of log p - log p_old over the round)
    L = mean of - min(s_t A_t, clip(s_t, 1 - 3e-4, 1 + 4e-4) A_t) over all rounds

In a round the model thinks, writes the report so far and acts. The next round sees only the question, the round before
it and the observation after that round, so the report is the model's only memory. Here the next round also sees the
thoughts of the round before it. Every round of an update has the same weight, also in long trajectories.

Equations:
    Read: the paper's section 3.2 and appendix C, and notes by others.

    - N1, state: `ObservationWindow(turns=1)`; tool results are input and have no loss.
    - N2, discounted reward: `Discounted(outcome="score", gamma=0.995)`.
    - N3, advantage: `GroupRelative(level="step")`, std with divisor n - 1, plus 1e-6.
    - N4, objective: `Policy`, `Ratio("step")`, `aggregate="step_mean"`.
    - N5, adaptive downsampling: an option, `weight.SelectDraws(column="score", multiple=8)`, which drops whole
      trajectories instead of rounds. Packs of tokens are split evenly over ranks without it.

Differs:
    - Clip range: one number, not stated; the two numbers of GSPO here.
    - Discount: not in the parts of the paper that were read; 0.995 in one of the notes and here.
    - Optimizer steps: not stated; 1 here, so the clip range has no effect.
    - Rounds: at most 32 in the paper's training; here the environment ends an episode.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import Clip, Policy, Ratio
from agentrl_core.rollout import ObservationWindow

ITER_RESEARCH = Recipe(
    name="iter_research",
    source="arXiv:2511.07327",
    rollout=ObservationWindow(turns=1),
    advantage=(
        Discounted(column="", outcome="score", gamma=0.995),
        GroupRelative(column="advantage", level="step"),
    ),
    loss=Policy(ratio=Ratio("step"), clip=Clip(3e-4, 4e-4), aggregate="step_mean"),
)
