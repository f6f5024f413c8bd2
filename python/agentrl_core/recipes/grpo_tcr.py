"""GRPO-TCR: token mean, clip-higher and a price on length, a recipe for agents that reason with tools.

    L = - mean over tokens of min(r A, clip(r, 0.8, 1.28) A), at least 10 A if A < 0
    R = outcome - min((length - 16384) / 4096, 1) beyond 16384 tokens,   A = (R - mean) / std

Lengths include the output of tools; the policy's own tokens only: `LengthPenalty(..., count="trained")`. No KL. Tasks
that the policy always or never solves are left out: `select.DynamicSampling`, which the paper's script has off.

Source: arXiv:2510.11701.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward import LengthPenalty, OutcomeScore

GRPO_TCR = Recipe(
    name="grpo_tcr",
    source="arXiv:2510.11701",
    reward=(OutcomeScore(), LengthPenalty(free=16384, full_at=20480, at_most=1.0)),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28, dual=10.0)),
)
