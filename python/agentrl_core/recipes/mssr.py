"""MSSR: one rollout for each task, without groups (arXiv:2512.18215).

A task's baseline v is the share of its earlier successes, which fade by rho at each visit. rho falls from 0.96 to 0.875
as the policy moves (by the mean KL of the last 20 batches over 0.01, at most 1). Advantages r - v are whitened over the
batch and shaped by min(0.4 entropy, |A| / 2) per token. Tasks are drawn by

    P(task) in proportion to sqrt(v (1 - v)) + 1e-6,

so that what is certain is visited rarely and never given up. v is 0.5 before the first visit.

The baseline and the weight of a task come of trackers of their own: the baseline's rho moves with the KL (column
`policy_kl`), which the trainer writes; the weight's is the middle of the two. Use `collect(tasks=..., group_size=1)`.

Equations:
    Read: the public code and notes of others on the paper.

    - C1, baseline: `TrackedBaseline`.
    - C2, start: left out: there is no pass over the data set before training; the first visit is trained against 0.5
      and counts as one success or failure, where the code's counts as eight.
    - C3, update with forgetting: `TrackedBaseline`, of scores 0 and 1.
    - C4, forgetting by KL: not computed: the code's rho rises with the KL up to the target and is least beyond it; the
      recipe's falls up to the target (`adapt="window"`). Both have the range and the window.
    - C5, advantage: `GroupRelative` over the batch, std of n and at least 1e-3.
    - C6, entropy shaping: `EntropyBonus`.
    - C7, loss: `Policy`, clip ranges 0.2 and 0.3, dual clip 3, `KL(0.01)`.
    - C8, forgetting by prompt: `TrackedBaseline(adapt="since_visit", kl_target=0.06)`, an option.

Differs:
    - Forgetting by KL: see C4. The more the policy moves, the less old outcomes are worth, as the notes have it.
    - Entropy: the code takes - p log p of the sampled token; the paper and the recipe that of the distribution.
    - Sampling of tasks: by priorities here, as the code's defaults; the file of its main script has none.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import EntropyBonus, GroupRelative, TrackedBaseline
from agentrl_core.loss import KL, Clip, Policy
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
        TrackedBaseline(adapt="window", kl_target=0.01),
        GroupRelative(column="advantage", group_by="batch", ddof=0, eps=0.0, scale_at_least=1e-3),
        EntropyBonus(),
    ),
    loss=Policy(clip=Clip(0.2, 0.3, dual=3.0), kl=KL(0.01)),
    minibatches=16,
)
