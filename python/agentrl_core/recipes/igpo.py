"""IGPO: a turn is paid for how much likelier it made the right answer (arXiv:2510.14967).

    g_k = P_k - P_{k-1},   P_k = exp(mean log p of the right answer's tokens, asked after turn k)
    A_k = sum over k' >= k of what turn k' has: its normalised gain, and the last one the normalised outcome
    normalised: (x - mean) / sqrt(variance + 1e-8) over the group's gains, and over its outcomes; variance divides by n

The last turn answers and has no gain. Two scripts are public: the newer takes the difference of log-probs,
`reward.InformationGain("log_probability")`; both leave gains of exactly 0 out of the statistics, and a function of
theirs puts gains and outcomes into one statistic, which is `group.normalise`'s to do.

Needs: `answer_logprob` after every step and before the first, from `arl.annotate` with a probe; the model reference.
"""

from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import InformationGain, OutcomeScore

IGPO = Recipe(
    name="igpo",
    source="arXiv:2510.14967",
    reward=(OutcomeScore(), InformationGain()),
    advantage=(
        GroupRelative(column="gain", level="step", ddof=0, eps=0.0, variance_eps=1e-8),
        GroupRelative(level="step", rows="last", add=True, ddof=0, eps=0.0, variance_eps=1e-8),
        Discounted(column="advantage"),
    ),
    loss=Policy(kl=KL(0.001)),
)
