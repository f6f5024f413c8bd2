"""DOTS: choose tasks of medium difficulty, predicted from a few surveyed tasks, and replay past groups.

Every other iteration rolls out 256 tasks without training on them. Their success rates predict the success rates of all
other tasks, by the similarity of the tasks' vectors z. Tasks whose predicted success rate is near one half are chosen:

    p(q) = sum_j softmax_j(z_q z_j / sqrt(width)) p_j,    P(q) ~ exp(-|p(q) - 1/2| / 0.001) without replacement

Half of the groups of a batch are fresh. The other half is drawn at random from the last 512 groups whose rewards are
not all equal. With r = p / p_sampled,

    L = - mean over rollouts of the mean over tokens of min(r A, clip(r, 0.8, 1.2) A),    A = R - mean of the group

Source: arXiv:2506.05316. The paper trains the projection of z and the calibration in advance, so put the projected
vectors into the pool. Its first batch is all fresh: to follow it, request more tasks in the first iteration.

Needs: the pool's column `embedding`, a vector for each task.

Equations:
    Read: the paper, its appendices D.2 and D.3, the authors' code, and a public port.

    - 1, advantage: `GroupRelative(scale="none")`.
    - 2, difficulty: `PredictedSuccess` predicts success rates, which are 1 - d.
    - 4.1, prediction: `PredictedSuccess`.
    - C2, calibration: left out: its two parameters come from a network that was trained before the RL and is not part
      of the recipe.
    - A10, choice: `NearTarget` and `ProportionalSampler`.
    - A16, batch: `Mix(share=0.5)`; not computed: in the recipe's cases.
    - A18, buffer: `Memory(capacity=512, unit="group", where=Where(column="advantage", above=0.0))`; not computed: as
      A16.
    - 4.3, objective: `Policy("sequence_mean")`; its old log-probs are from the policy that sampled. No KL, as in D.2.
    - C4, buffer of the code: `Memory(capacity=512, per_task=1, unit="group")`, which includes groups of equal rewards;
      not computed: as A16.
    - C5, loss of the code: `Policy(clip=Clip(center="proximal"))`, a mean over tokens, with `GroupRelative()`. It reads
      `proximal_logprob`, from `arl.annotate(batch, "proximal_logprob", policy)`.

Differs:
    - Choice: the code chooses the tasks of two iterations at once, from the survey before them, so no task occurs
      twice. Here each iteration chooses its tasks by the newest survey of an earlier iteration, and may repeat a task.
    - Batch: the paper adds stored groups only if the buffer holds the wanted number; here all available ones are added
      if it holds fewer.
    - Surveyed tasks: they keep the measured success rate, as in the paper; the code predicts their rates too.
    - Clip range: not stated; 0.2, as in the code.
    - Capacity: 256 or 512 in the paper.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Where
from agentrl_core.loss import Policy
from agentrl_core.replay import Memory, Mix
from agentrl_core.select import ComposedSelector, NearTarget, PredictedSuccess, ProportionalSampler, Survey

DOTS = Recipe(
    name="dots",
    source="arXiv:2506.05316",
    select=ComposedSelector(
        track=PredictedSuccess(by="embedding"),
        score=NearTarget(0.5),
        sample=ProportionalSampler(temperature=1e-3),
        survey=Survey(tasks=256, every=2),
    ),
    replay=Mix(Memory(capacity=512, unit="group", where=Where(column="advantage", above=0.0)), share=0.5),
    advantage=GroupRelative(scale="none"),
    loss=Policy("sequence_mean"),
    minibatches=8,
)
