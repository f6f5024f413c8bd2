"""Lite PPO: normalise by the group's mean and the batch's std, and average the loss over tokens (arXiv:2508.08221).

    A = (R - mean of the group) / (std of the batch's rewards + 1e-6)
    L = - mean over tokens of min(r A, clip(r, 0.8, 1.2) A)

Lite PPO combines the tricks that helped when each was tried alone. If the rewards of a group are nearly equal, the
group's std is tiny and makes the gradient explode; the batch's std does not. There is no critic, no KL penalty and no
entropy bonus.

Equations:
    Read: the paper's sections 2 to 5, the code of the authors' framework and of another framework, and notes.

    - C1, advantage: `GroupRelative(scale_by="batch")`, the combination of the paper's section 4.1.2.
    - C2, advantage in the other framework: an option, `(GroupRelative(scale="none"), GroupRelative(column="advantage",
      group_by="batch"))`: it divides by the std of the differences from the groups' means.
    - N1, loss: `Policy`, with clip range 0.2 and a mean over tokens.

Differs:
    - Settings of the documentation (GAE, whitening, dual clip, a KL of 0.001, the mean over rollouts): neither here nor
      in the paper's method, which is a vanilla PPO loss without a critic.
    - Clip range: 0.4 in the other framework's example; 0.2 in the documentation and here, the default that the paper
      names.
    - Optimizer steps: the paper's global batch contains all rollouts of a step, so 1 here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

LITE_PPO = Recipe(name="lite_ppo", source="arXiv:2508.08221", advantage=GroupRelative(scale_by="batch"), loss=Policy())
