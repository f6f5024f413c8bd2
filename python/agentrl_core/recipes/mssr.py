"""MSSR: train on one rollout per task, with a running success rate of the task as the baseline (arXiv:2512.18215).

A task's baseline v is the share of its earlier successes, whose weights are multiplied by rho at each visit. rho
depends on the mean KL of the last 20 batches: it rises from 0.875 at KL 0 to 0.96 at KL 0.01, and is 0.875 beyond.
Advantages r - v are whitened over the batch, and min(0.4 entropy, |A| / 2) is added per token. v is 0.5 before the
first visit.

The KL is the column `policy_kl`, which the trainer writes. Use `collect(tasks=..., group_size=1)`. The code can sample
tasks in proportion to sqrt(v (1 - v)) + 1e-6, so that tasks with a certain outcome are rarely visited:
`MSSR.replace(select=ComposedSelector(track=Beta(0.0, 0.0, decay=0.9175, unseen=0.5), score=OutcomeVariance(power=1.0,
floor=1e-6), sample=ProportionalSampler()))`.

Equations:
    Read: the public code and notes of others on the paper.

    - C1, baseline: `TrackedBaseline`.
    - C2, start: left out: there is no pass over the data set before training. The first visit is trained against 0.5
      and counts as one success or failure; the code's first visit counts as eight.
    - C3, update with forgetting: `TrackedBaseline`, for scores 0 and 1.
    - C4, forgetting by KL: `TrackedBaseline(adapt="window_peak", kl_target=0.01)`.
    - C5, advantage: `GroupRelative` over the batch; its std divides by n and is at least 1e-3.
    - C6, entropy shaping: `EntropyBonus`.
    - C7, loss: `Policy`, with clip ranges 0.2 and 0.3, dual clip 3 and `KL(0.01)`.
    - C8, forgetting by prompt: `TrackedBaseline(adapt="since_visit", kl_target=0.06)`, an option.

Differs:
    - Forgetting by KL: two notes read the rule of C4 in the paper, as it is in the code; a third note considers it a
      mistake. With `TrackedBaseline(adapt="window", kl_target=0.01)`, rho falls as the KL rises to the target.
    - Entropy: the code uses - p log p of the sampled token; the paper and this recipe use the entropy of the
      distribution.
    - Sampling of tasks: by priorities in the code's defaults; neither the file of its main script, nor the notes on the
      paper, nor this recipe use priorities.

Needs: the reference model; the column `policy_kl`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import EntropyBonus, GroupRelative, TrackedBaseline
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.reward import OutcomeScore

MSSR = Recipe(
    name="mssr",
    source="arXiv:2512.18215",
    reward=OutcomeScore(success=1.0, failure=0.0),
    advantage=(
        TrackedBaseline(adapt="window_peak", kl_target=0.01),
        GroupRelative(column="advantage", group_by="batch", ddof=0, eps=0.0, scale_at_least=1e-3),
        EntropyBonus(),
    ),
    loss=Policy(clip=Clip(0.2, 0.3, dual=3.0), kl=KL(0.01)),
    minibatches=16,
)
