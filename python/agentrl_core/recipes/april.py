"""APRIL: start twice as many groups as needed, and continue the unfinished ones later (arXiv:2509.18521).

    N' = 2 N groups are in flight; as soon as N have ended, the batch is theirs, and generation stops
    groups that have not ended go on in the next iteration, before new ones, under its weights
    L = - mean over rollouts of the mean over tokens of min(r A, clip(r, 0.8, 1.28) A)
    r = p / p_start,   A = (R - mean) / std of the group

p_start is the policy at the start of the update, recomputed for all tokens, whichever weights sampled them. A group of
equal rewards does not count as ended. Collect with `Collector(..., batch_policy=BatchPolicy(oversample=2.0))`; N = 32,
groups of 8, temperature 0.8. How often a group may go on is not bounded;
`BatchPolicy(oversample=2.0, max_carryovers=4)` bounds it.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, over-provision: `BatchPolicy(oversample=2.0)`, an option of the collector and not of the recipe.
    - C2, stop: `BatchPolicy`, and the filter `DynamicSampling(Band())`.
    - C3, resume: `BatchPolicy`; not computed: the collector continues the tokens, and the engine's limit counts them.
    - C4, order: `BatchPolicy`; not computed: carried groups are continued first, in the collector.
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
