"""DOTS: choose tasks of middling difficulty, predicted from a few surveyed ones, and replay groups of the past.

Every other iteration 256 tasks are rolled out, without training on them. Their success rates predict all other tasks by
the likeness of their vectors z, and the tasks that are probably solved half the time are chosen:

    p(q) = sum_j softmax_j(z_q z_j / sqrt(width)) p_j,    P(q) ~ exp(-|p(q) - 1/2| / 0.001) without replacement

Half of the groups of a batch are fresh, half are drawn at random from the last 512. With r = p / p_sampled and
c = p_k / p_sampled, where p_k is the policy when the step begins,

    L = - mean min(r A, clip(r, 0.8 c, 1.2 c) A),    A = (R - mean) / std of its own group

Source: arXiv:2506.05316. The projection of z and its calibration were trained before: give the projected vectors. The
first iteration is all fresh there and of twice the size: ask for more tasks in it.

Needs: the pool's column `embedding`, a vector for each task; `proximal_logprob` from
`arl.annotate(batch, "proximal_logprob", policy)`.

Equations:
    Read: the authors' code, and a public port.

    - 2, difficulty: the success rates of `PredictedSuccess` are 1 - d.
    - C1, prediction: `PredictedSuccess`.
    - C2, calibration: left out: its two parameters come from a network that was trained before the RL and is not part
      of the recipe.
    - C3, choice: `NearTarget` and `ProportionalSampler`.
    - C4, batch and buffer: `Mix(Memory(capacity=512, per_task=1, unit="group"))`; not computed: in the recipe's cases.
    - C5, loss: `Clip(center="proximal")`, mean over tokens; the advantage is `GroupRelative`.

Differs:
    - Choice: the code draws the tasks of both iterations at once, from the survey before them, so that no task comes
      twice. Here each iteration draws its own, by the newest survey of an earlier iteration, and may repeat a task.
    - Groups with equal rewards: public notes on the paper leave them out of the buffer. In the code that filter is a
      comment; here they stay too. `Memory(where=Where(column="advantage", above=0.0))` leaves them out.
    - Surveyed tasks: keep the success rate that was measured; the code predicts those too.
    - Memory: the code appends each fresh batch twice; here once.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
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
    replay=Mix(Memory(capacity=512, per_task=1, unit="group"), share=0.5),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(center="proximal")),
    minibatches=8,
)
