"""DOTS: tasks of middling difficulty, predicted from a few that are looked at; and groups of the past beside the fresh.

Every other iteration 256 tasks are rolled out, without training on them. Their success rates predict all other tasks by
the likeness of their vectors z, and the tasks that are probably solved half the time are chosen:

    p(q) = sum_j softmax_j(z_q z_j / sqrt(width)) p_j,    P(q) ~ exp(-|p(q) - 1/2| / 0.001) without replacement

Half of the groups of a batch are fresh, half are drawn at random from the last 512. With r = p / p_sampled and
c = p_k / p_sampled, where p_k is the policy when the step begins,

    L = - mean min(r A, clip(r, 0.8 c, 1.2 c) A),    A = (R - mean) / std of its own group

Source: arXiv:2506.05316; code ASTRAL-Group/data-efficient-llm-rl, which appends each fresh batch to its memory twice;
that is not done here. The projection of z and its calibration are trained there: give the projected vectors. The first
iteration is all fresh there and of twice the size: ask for more tasks in it. Groups of equal rewards are remembered, as
in the code.

Needs: the pool's column `embedding`, a vector for each task; `proximal_logprob` from
`arl.annotate(batch, "proximal_logprob", policy)`.
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
    replay=Mix(Memory(capacity=512, unit="group"), share=0.5),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(center="proximal")),
)
