"""DAPO: clip wider above than below, and resample groups with equal rewards (arXiv:2503.14476).

GRPO with four changes: groups whose scores are all equal are replaced by new ones; the clip range is higher above than
below; all tokens of the batch weigh the same; and answers that come near the longest that is allowed are charged,

    R_length = 0 up to 16384 tokens, then (16384 - length) / 4096, -1 from 20480 on.

There is no penalty on the divergence from a reference. Groups have 16 members in the paper
(`collect(tasks=512, group_size=16)`), and minibatches are sixteen (`DAPO.replace(minibatches=16)`).
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward import LengthPenalty, OutcomeScore
from agentrl_core.select import DynamicSampling

DAPO = Recipe(
    name="dapo",
    source="arXiv:2503.14476",
    reward=(OutcomeScore(), LengthPenalty(free=16384, full_at=20480, at_most=1.0)),
    admit=DynamicSampling(),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28)),
)
