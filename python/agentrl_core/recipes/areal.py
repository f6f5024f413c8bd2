"""AReaL: generation runs ahead of training, and the loss tolerates what is stale (arXiv:2505.24298).

    L = - mean over tokens of w min(u A, clip(u, 0.8, 1.2) A),   u = p / p_proximal,   w = p_proximal / p_behaviour
    tokens with w > 5 have no term and still count in the mean;   A = (R - mean) / std of the batch

p_proximal is the policy at the start of the step, so that the trust region does not lie around an old policy; w
corrects for who sampled. Its filters by divergence are
`weight.importance.TrustRegion(logprob="proximal_logprob", denominator="all")`. How far generation may run ahead is the
collection's. Without the forward pass that makes p_proximal it is interpolated by the versions that a token lies behind
(A-3PO, arXiv:2512.06547): `AREAL.replace(weight=None, loss=Policy(clip=Clip(center="interpolated",
center_at_most=5.0)))`.

Needs: `proximal_logprob`, from `arl.annotate` before the first update; interpolated it needs nothing.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.weight import ImportanceWeight

AREAL = Recipe(
    name="areal",
    source="arXiv:2505.24298",
    advantage=GroupRelative(group_by="batch"),
    weight=ImportanceWeight(logprob="proximal_logprob", kind="filter", at_most=5.0),
    loss=Policy(clip=Clip(center="proximal")),
)
