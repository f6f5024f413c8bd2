"""BuPO: train a middle layer as the policy for 30 iterations, then the whole model (arXiv:2512.19673).

The output of a layer k is a policy too: pi_k = softmax(W h_k / T) with the unembedding W of the model. In the first 30
iterations pi_k is trained in the place of the policy, which moves the layers up to k and W:

    L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A), at least 10 A if A < 0,   r = p / p_old

with p and p_old of pi_k up to iteration 30, and of the whole model afterwards. Rollouts are the whole model's, so that
r is no importance ratio in the first phase.

Source: arXiv:2512.19673; code Trae1ounG/BuPO (k = 5 of Qwen3-4B, without the final norm in front of W). To the recipe
pi_k is the model `internal`, which shares its parameters with the policy: the caller's `pack.run` reads layer k.
Needs: `internal`; `recomputed_logprob` of each iteration from `arl.annotate`, by `internal` up to iteration 30 and by
the policy afterwards.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy, Train
from agentrl_core.schedule import FreezeModel

_LOSS = Policy(clip=Clip(dual=10.0))

BU_PO = Recipe(
    name="bu_po",
    source="arXiv:2512.19673",
    advantage=GroupRelative(),
    loss=(Train(_LOSS, model="internal"), Train(_LOSS)),
    hooks=(FreezeModel("policy", until=31), FreezeModel("internal", since=31)),
    old_logprob="recomputed",
)
