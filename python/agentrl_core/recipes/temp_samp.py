"""TempSamp-R1: the right answer is one member of each group, and does not outshine the others (arXiv:2509.18056).

Three rollouts are sampled, the fourth member says the task's solution. Its tokens were not sampled: all old log-probs
are recomputed. Scores are flattened above 0.8 and steepened below before they are compared (`reward.CompressHigh`). The
paper's other two forms, a reward scaled by 0.8 and an advantage anchored at 1.2 times the largest sampled one, are not
here. Without a solution the fourth is sampled as the others are.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import CompressHigh, OutcomeScore
from agentrl_core.rollout import RolloutSpec, Rounds, SolutionHint

TEMP_SAMP = Recipe(
    name="temp_samp",
    source="arXiv:2509.18056",
    rollout=Rounds(
        members=RolloutSpec(3) + RolloutSpec(1, prefill=SolutionHint(), prefill_trained=True, fact="expert")
    ),
    reward=(OutcomeScore(), CompressHigh()),
    advantage=GroupRelative(),
    loss=Policy(),
    old_logprob="recomputed",
)
