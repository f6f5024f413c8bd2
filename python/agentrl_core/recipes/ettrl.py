"""ETTRL: train at test time without labels, with forks at the policy's most uncertain tokens (arXiv:2508.11356).

M whole rollouts; each is left before its 3 most uncertain tokens by 2 forks: M (1 + 6) answers, of which the most
common is taken for the right one. With H the mean entropy of a draw, its advantage is multiplied by
max(0, 1 + (mean H - H) / mean H), so that certain answers of an uncertain group are trusted less. M is as many as fit
into the group size: 9 for 64. The environment says `answer_cluster` and `answer_parsed`.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.reward import AnswerAgreement
from agentrl_core.rollout import TokenForks
from agentrl_core.weight import EntropyScaled

ETTRL = Recipe(
    name="ettrl",
    source="arXiv:2508.11356",
    rollout=TokenForks(positions=3, copies=2),
    reward=AnswerAgreement(kind="majority"),
    advantage=GroupRelative(),
    weight=EntropyScaled(level="draw", kind="relative", group_by="group_id", coefficient=1.0),
    loss=Policy(),
)
