"""D3S: learn from the draws whose advantages vary most, and of those from the tokens that matter most.

    half of the batch's draws, so that the variance of A is largest; of their tokens the fifth with the largest |A| H
    L = - mean over those tokens of min(r A, clip(r, 0.8, 1.2) A)

Advantages are made of all draws and stay. Both shares grow to (nearly) all over training; their ends and how long it
takes are not given, those here are ours. Dropped tokens count in no denominator.

Source: arXiv:2509.22115.
"""

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, TopTokens
from agentrl_core.weight import SelectDraws

D3S = Recipe(
    name="d3s",
    source="arXiv:2509.22115",
    advantage=GroupRelative(),
    weight=SelectDraws(kind="max_variance", group_by="batch", fraction=Schedule(start=0.5, end=1.0, iterations=400)),
    loss=Policy(mask=TopTokens("advantage_entropy", Schedule(start=0.2, end=0.99, iterations=400), denominator="kept")),
)
