"""AReaL: generation runs ahead of training, and the loss tolerates what is stale (arXiv:2505.24298).

    L = - mean over tokens of w min(u A, clip(u, 0.8, 1.2) A),   u = p / p_proximal,   w = p_proximal / p_behaviour
    A = (R - mean) / std over the trained tokens of the batch

p_proximal is the policy at the start of the step, so that the trust region does not lie around an old policy; w
corrects for who sampled. Generation runs at most 8 iterations ahead: `Collector(..., staleness=8)`, 4 for code.

The public code drops tokens with w > 5, which still count in the mean: `Clip(center="proximal", center_at_most=5.0)`.
Its filters by divergence are `weight.importance.TrustRegion(logprob="proximal_logprob", denominator="all")`. Without
the forward pass that makes p_proximal it is interpolated by the versions that a token lies behind (A-3PO,
arXiv:2512.06547): `Clip(center="interpolated", center_at_most=5.0)`.

Equations:
    Read: the public code, and notes on the paper; its text was not read.

    - 3, staleness control: `LimitStaleness(8)`, counted in batches: trajectory N is of batch (N - 1) // B.
    - 5, decoupled objective: `Clip(center="proximal")` on the ratio to the behaviour policy, which is w u.
    - C1, admission: `LimitStaleness(8)`; how many rollouts run at once is `Collector(..., concurrency=...)`.
    - C2, divergence filter: the option `Clip(center_at_most=5.0)`.
    - C3, advantage: `GroupRelative(group_by="batch", voter="token")`.
    - C4, approximate proximal policy: the option `Clip(center="interpolated")`.

Differs:
    - Filter: tokens with w > 5 are dropped in the code; the paper has no such bound, nor has this recipe.
    - Score: 5 or -5 in the paper; any affine change of a score cancels in the normalisation.
    - Clip range and learning rate of the code's main recipe: 0.4 and 1e-5; here those of the paper's table 3.
    - Score in the code's main recipe: divided by the std of its group first; not in the paper, nor here.

Needs: `proximal_logprob`, from `arl.annotate` before the first update; interpolated it needs nothing.
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
