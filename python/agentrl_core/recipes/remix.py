"""ReMix: stale data beside fresh data, two divergences that change places, and a policy that is born again.

Two fifths of a batch come from the last two policies. With r = p / p_sampled and c = p_k / p_sampled, where p_k is the
policy when the step begins,

    L = - mean min(r A, clip(r, max(c - 0.2, 0), c + 0.2) A)
        + 1e-3 (lambda KL(p || reference) + (1 - lambda) KL(p || p_k))
    lambda = max(1 - 0.1 ceil(max(t - 50, 0) / 10), 0.5)

and two passes. For fresh data c is 1, and this is PPO's clip. After iteration 50 the reference becomes the policy, and
stored data is drawn no more.

Source: arXiv:2507.06892, which has no public code. Unknown there, chosen here: the coefficient 1e-3 of the divergences;
that both past policies are drawn alike, whole groups of them. The previous policy of the second divergence is p_k.
Needs: `reference_logprob`, and `proximal_logprob` from `arl.annotate(batch, "proximal_logprob", policy)`.
"""

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.replay import Memory, Mix
from agentrl_core.schedule import Choice, SyncModel

_AFTER = Schedule(0.0, 1.0, iterations=1, begin=50, kind="step")  # from iteration 51 on

REMIX = Recipe(
    name="remix",
    source="arXiv:2507.06892",
    replay=Choice((Mix(Memory(max_age=2, unit="group"), share=0.4), None), by=_AFTER),
    advantage=GroupRelative(),
    loss=Policy(
        clip=Clip(0.2, 0.2, center="proximal_shift"),
        kl=KL(Schedule(1e-3, 5e-4, iterations=50, begin=50, kind="stairs", stairs=5)),
        drift=Choice(
            (
                None,
                KL(
                    Schedule(1e-4, 5e-4, iterations=40, begin=60, kind="stairs", stairs=4),
                    column="proximal_logprob",
                ),
            ),
            by=_AFTER,
        ),
    ),
    hooks=SyncModel("policy", "reference", once=51),
    epochs=2,
)
