"""IterResearch (EAPO): rounds of research that lead to the answer sooner are worth more (arXiv:2511.07327).

    r_t = gamma^(T - t) R,   A_t = (r_t - mean r) / std r over all rounds of a task's trajectories
    s_t = exp(mean of log p - log p_old over the round)
    L = mean of - min(s_t A_t, clip(s_t, 1 - 3e-4, 1 + 4e-4) A_t) over all rounds

A round thinks, writes the report so far and acts; the next one sees the question, that round and what it was answered,
and nothing else, so that the report is all that it remembers. The last round is shown with its thoughts here. Every
round of an update counts the same, those of long trajectories too.

Equations:
    Read: the paper's section 3.2 and appendix C, and notes of others.

    - N1, state: `ObservationWindow(turns=1)`; results of tools are input and have no loss.
    - N2, discounted reward: `Discounted(outcome="score", gamma=0.995)`.
    - N3, advantage: `GroupRelative(level="step")`, std of n - 1 and 1e-6 added to it.
    - N4, objective: `Policy`, `Ratio("step")`, `aggregate="step_mean"`.
    - N5, adaptive downsampling: an option, `weight.SelectDraws(column="score", multiple=8)`, which drops whole
      trajectories instead of rounds. Packs of tokens share out evenly over ranks without it.

Differs:
    - Clip range: one number, not stated; the two of GSPO here.
    - Discount: not in what was read of the paper; 0.995 by one of the notes, as here.
    - Optimizer steps: not stated; 1 here, so that the clip range does not act.
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
