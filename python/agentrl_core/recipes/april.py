"""APRIL: start twice as many groups as needed, and continue the unfinished ones later (arXiv:2509.18521).

    N' = 2 N groups are in flight; as soon as N have ended, they form the batch, and generation stops
    groups that have not ended continue in the next iteration, before new ones, with its weights
    L = - mean over rollouts of the mean over tokens of min(r A, clip(r, 0.8, 1.28) A)
    r = p / p_start,   A = (R - mean) / std of the group

p_start is the policy at the start of the update. Its log-probs are recomputed for all tokens, including tokens that
older weights sampled. A group whose rewards are all equal does not count as ended. Collect with
`Collector(..., batch_policy=BatchPolicy(oversample=2.0))`; N = 32, groups of 8, temperature 0.8. A group may continue
any number of times; `BatchPolicy(oversample=2.0, max_carryovers=4)` sets a limit.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, over-provision: `BatchPolicy(oversample=2.0)`, an option of the collector, not of the recipe.
    - C2, stop: `BatchPolicy`, and the filter `DynamicSampling(Band())`.
    - C3, resume: `BatchPolicy`; not computed: the collector continues from the sampled tokens, which count towards
      the engine's limit.
    - C4, order: `BatchPolicy`; not computed: the collector continues carried-over groups first.
    - C5, loss: `Policy("sequence_mean", clip=Clip(high=0.28))`, `old_logprob="recomputed"`.

Differs:
    - Groups that end together with the last needed one: lost in the code, carried over here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.select import Band, DynamicSampling

APRIL = Recipe(
    name="april",
    source="arXiv:2509.18521",
    admit=DynamicSampling(Band(), max_rounds=10),
    advantage=GroupRelative(),
    loss=Policy("sequence_mean", clip=Clip(high=0.28)),
    old_logprob="recomputed",
)
