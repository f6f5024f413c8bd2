"""ARPO: branch after tool results that raise the entropy of the policy (arXiv:2507.19849).

GRPO on groups of 16 trajectories, of which 8 start at the prompt; the rest are branches that leave where the entropy
of what the model writes after a tool result has risen:

    Pr(copy) = clip(0.5 + 0.2 (H - H_initial), 0, 1).

Credit is the paper's soft attribution: every branch has the group-relative advantage of its own outcome, and a step
that d branches share is trained once for each of them (`shared="each"`), which is their mean advantage times d.

The public code measures the segment before the tool result and branches after the result
(`EntropyBranching(measure="before_tool")`), keeps H_initial by row number across batches, and sums the entropy over
the ten most likely tokens only; this recipe does none of the three. Its reward (-1 for a bad format, a bonus for using
two tools) belongs to its tasks, not to the recipe.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import EntropyBranching

ARPO = Recipe(
    name="arpo",
    source="arXiv:2507.19849",
    rollout=EntropyBranching(budget=16, initial=8, beam=2, probability=0.5, entropy_weight=0.2),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.2), aggregate="token_mean"),
)
