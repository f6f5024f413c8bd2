"""AReaL: run generation ahead of training, with a loss that tolerates stale data (arXiv:2505.24298).

    L = - mean over tokens of w min(u A, clip(u, 0.8, 1.2) A),   u = p / p_proximal,   w = p_proximal / p_behaviour
    A = (R - mean) / std over the trained tokens of the batch

p_proximal is the policy at the start of the step, so that the trust region is not centred on an old policy; w corrects
for the policy that sampled. Generation runs at most 8 iterations ahead: `Collector(..., staleness=8)`; 4 for coding
tasks.

The public code drops tokens with w > 5, which still count in the mean: `Clip(center="proximal", center_at_most=5.0)`.
Its divergence filters are `weight.importance.TrustRegion(logprob="proximal_logprob", denominator="all")`. To save the
forward pass for p_proximal, interpolate it by the staleness of each token in versions (A-3PO, arXiv:2512.06547):
`Clip(center="interpolated", center_at_most=5.0)`.

Equations:
    Read: the public code, and notes on the paper; its text was not read.

    - 3, staleness control: `LimitStaleness(8)`, counted in batches: trajectory N belongs to batch (N - 1) // B.
    - 5, decoupled objective: `Clip(center="proximal")` on the ratio to the behaviour policy, which is w u.
    - C1, admission: `LimitStaleness(8)`; `Collector(..., concurrency=...)` sets how many rollouts run at once.
    - C2, divergence filter: the option `Clip(center_at_most=5.0)`.
    - C3, advantage: `GroupRelative(group_by="batch", voter="token")`.
    - C4, approximate proximal policy: the option `Clip(center="interpolated")`.

Differs:
    - Filter: the code drops tokens with w > 5; the paper and this recipe have no such bound.
    - Score: 5 or -5 in the paper; the normalisation cancels any affine change of a score.
    - Clip range and learning rate of the code's main recipe: 0.4 and 1e-5; here the values of the paper's table 3.
    - Score in the code's main recipe: divided by the std of its group first; neither in the paper nor here.

Needs: `proximal_logprob`, from `arl.annotate` before the first update; the interpolated form needs nothing.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.schedule import LimitStaleness

AREAL = Recipe(
    name="areal",
    source="arXiv:2505.24298",
    advantage=GroupRelative(group_by="batch", voter="token"),
    loss=Policy(clip=Clip(center="proximal")),
    minibatches=4,
    hooks=LimitStaleness(8),
)
