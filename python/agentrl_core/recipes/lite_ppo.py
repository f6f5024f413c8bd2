"""Lite PPO: the mean of the group, the spread of the batch, and a mean over tokens (arXiv:2508.08221).

    A = (R - mean of the group) / (std of the batch's rewards + 1e-6)
    L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A)

The tricks that helped when each was tried alone: if the rewards of a group are nearly equal its own spread is
tiny and blows up the gradient; that of the batch does not. Neither critic, nor KL, nor entropy.

Equations:
    Read: the paper's sections 2 to 5, the code of the authors' framework and of another one, and notes.

    - C1, advantage: `GroupRelative(scale_by="batch")`, the combination of the paper's section 4.1.2.
    - C2, advantage in the other framework: an option, `(GroupRelative(scale="none"),
      GroupRelative(column="advantage", group_by="batch"))`: the spread of the differences from the groups' means.
    - N1, loss: `Policy`, clip range 0.2, mean over tokens.

Differs:
    - Settings of the documentation (GAE, whitening, dual clip, a KL of 0.001, the mean over rollouts): not in the
      paper's method, which is a vanilla PPO loss without a critic, and not here.
    - Clip range: 0.4 in the other framework's example; 0.2, the default that the paper names, in the documentation and
      here.
    - Optimizer steps: the paper's global batch has all rollouts of a step, so 1 here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

LITE_PPO = Recipe(name="lite_ppo", source="arXiv:2508.08221", advantage=GroupRelative(scale_by="batch"), loss=Policy())
