"""SimpleTIR: trajectories with a void turn, which make gradients explode, leave the loss (arXiv:2509.02479).

    A = (R - mean) / std over the group, void ones included
    L = - mean over tokens of min(r A, clip(r, 0.8, 1.28) A), at least 3 A, of trajectories without a void turn, of
        groups with std > 0.001 and a mean from 0.1 to 0.9

A void turn has neither a whole code block nor a final answer; the environment marks it (`env.StepFlag.VOID`). To take
away its vote as well: `reward.Unscored(flags="void")`. Oversampling tasks until the batch is full:
`select.DynamicSampling` with the same band.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.select import Band
from agentrl_core.weight import FlagFilter, GroupFilter

SIMPLE_TIR = Recipe(
    name="simple_tir",
    source="arXiv:2509.02479",
    advantage=GroupRelative(),
    weight=(FlagFilter(flags="void"), GroupFilter(band=Band(std_above=1e-3, at_least=0.1, at_most=0.9))),
    loss=Policy(clip=Clip(0.2, 0.28, dual=3.0)),
)
