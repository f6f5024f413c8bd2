"""ReMax: the greedy answer is the baseline, in the place of a critic (arXiv:2310.10505).

Each task is sampled once and answered once greedily; D = clip(R - R_greedy, -5, 5), and of n trained tokens the t-th
has

    advantage = 0.99^(n - t + 1) D - 0.05 (log pi - log pi_ref),    L = - mean over tokens of advantage * log pi.

The greedy rollout has an episode of its own; it is scored and never trained.
"""

from agentrl_core.advantage import GreedyRelative
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import RolloutSpec, Rounds

REMAX = Recipe(
    name="remax",
    source="arXiv:2310.10505",
    rollout=Rounds(members=RolloutSpec(1) + RolloutSpec(1, temperature=0.0, role="baseline", fact="greedy")),
    advantage=GreedyRelative(gamma=0.99, kl_coefficient=0.05),
    loss=Policy(clip=None, surrogate=Reinforce(), aggregate="token_mean"),
)
