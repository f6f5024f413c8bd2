"""MSSR: one rollout for each task, without groups (arXiv:2512.18215).

A task's baseline v is the share of its earlier successes, which fade by rho at each visit. rho falls from 0.96 to 0.875
as the policy moves (by the mean KL of the last 20 batches over 0.06, at most 1). Advantages r - v are whitened over the
batch and shaped by min(0.4 entropy, |A| / 2) per token. Tasks are drawn by

    P(task) in proportion to sqrt(v (1 - v)) + 1e-6,

so that what is certain is visited rarely and never given up. v is 0.5 before the first visit.

The baseline and the weight of a task come of trackers of their own: the baseline's rho moves with the KL (column
`policy_kl`), which the trainer writes; the weight's is the middle of the two. Use `collect(tasks=..., group_size=1)`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import EntropyBonus, GroupRelative, TrackedBaseline
from agentrl_core.loss import KL, Policy
from agentrl_core.reward import OutcomeScore
from agentrl_core.select import Beta, ComposedSelector, OutcomeVariance, ProportionalSampler

MSSR = Recipe(
    name="mssr",
    source="arXiv:2512.18215",
    select=ComposedSelector(
        track=Beta(0.0, 0.0, decay=0.9175, unseen=0.5),
        score=OutcomeVariance(power=1.0, floor=1e-6),
        sample=ProportionalSampler(),
    ),
    reward=OutcomeScore(success=1.0, failure=0.0),
    advantage=(
        TrackedBaseline(adapt="window"),
        GroupRelative(column="advantage", group_by="batch"),
        EntropyBonus(),
    ),
    loss=Policy(kl=KL(0.01)),
)
