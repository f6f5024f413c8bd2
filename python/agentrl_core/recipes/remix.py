"""ReMix: mix stale with fresh data, move weight between two KL penalties, and restart the reference from the policy.

Two fifths of a batch come from the last two policies. With r = p / p_sampled and c = p_k / p_sampled, where p_k is the
policy at the start of the step,

    L = - mean min(r A, clip(r, max(c - 0.2, 0), c + 0.2) A)
        + 1e-3 (lambda KL(p || reference) + (1 - lambda) KL(p || p_k))
    lambda = max(1 - 0.1 ceil(max(t - 50, 0) / 10), 0.5)

Each batch is used in two passes. For fresh data c is 1, and the loss has PPO's clip. After iteration 50 the policy is
copied into the reference, and stored data is no longer drawn.

Source: arXiv:2507.06892, which has no public code. Needs: `reference_logprob`, and `proximal_logprob` from
`arl.annotate(batch, "proximal_logprob", policy)`.

Equations:
    Read: the abstract and two summaries of others; the paper's text was not read.

    - N1, mixture: `Mix(share=0.4)` of a `Memory(max_age=2)`; not computed: the example has parts of rollouts; here
      whole groups are drawn, and their number is rounded down.
    - N2, loss: `Clip(center="proximal_shift")`.
    - N3, passes: `epochs=2`.
    - N4, KL-convex: `kl` and `drift` of `Policy`, each with a `Schedule` in stairs.
    - N5, reincarnation: `SyncModel("policy", "reference", once=51)`, and `Choice` for `replay` and `drift`.
    - N6, advantage: `GroupRelative`, std of n - 1.

Differs:
    - KL and entropy: their coefficients are not stated; 1e-3 and no entropy bonus here.
    - Last policy of the second divergence: pi_{k-1} in the summaries; here p_k, which is also the centre of the clip.
      So this divergence is 0 in the first of the two passes.
    - Mean: the sources do not state whether it is over tokens or responses; over tokens here.
    - Mixture: each trajectory by chance in the summaries; here whole groups, of both past policies equally.
    - Clip: not stated; 0.2 around the centre here.
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
