"""SimpleTIR: remove trajectories with a void turn from the loss, since they make gradients explode (arXiv:2509.02479).

    A = (R - mean) / std over the group, including trajectories with a void turn
    L = - mean over tokens of min(r A, clip(r, 0.8, 1.28) A), at least 3 A, of trajectories without a void turn, of
        groups with std > 0.001 and a mean from 0.1 to 0.9

A void turn has neither a complete code block nor a final answer; the environment marks it (`env.StepFlag.VOID`). To
exclude such trajectories from the group's statistics too, use `reward.Unscored(flags="void")`. To oversample tasks
until the batch is full, use `select.DynamicSampling` with the same band.

Equations:
    Read: the public code and the abstract.

    - C1, void turn: left out: the environment, which has the programs and answers, marks the turn.
    - C2, mask: `FlagFilter(flags="void")`.
    - C3, advantage: `GroupRelative`; a rollout with a void turn votes. A group of one has 0 here, and its reward in the
      code (`singleton="raw"`).
    - C4, overlong: an option, `reward=(OutcomeScore(), Unscored(flags="truncated"))`.
    - C5, groups: `GroupFilter(band=Band(std_above=1e-3, at_least=0.1, at_most=0.9))`.
    - C6, loss: `Policy`, clip ranges 0.2 and 0.28, dual clip 3, mean over tokens.

Differs:
    - Oversampling: the code samples three times the prompts and cuts off the surplus; `DynamicSampling` with the same
      band requests the missing groups.
    - Groups with few answers in time: the code drops them; this is left out here.
    - Overlong answers: not filtered here, as in the script's default; filtered by the README's command.
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
    minibatches=4,
)
